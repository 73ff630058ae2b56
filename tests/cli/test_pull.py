"""radish pull against a hub on this machine that cuts, lies, redirects, refuses and stalls (hub_server.py)."""

import hashlib
import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import pytest

from hub_server import HubServer, cut, git_sha, sha256, stall, status, swap, to, whole

REPO = "org/tiny-GGUF"
MODEL = b"GGUF\x03\0\0\0" + bytes(range(256)) * 1200  # 300 KiB
SMALL = b'{"of": "git"}'


class Pull:
    """radish pull with a hub, and a home of its own."""

    def __init__(self, radish, home):
        self.radish, self.home, self.hub = radish, home, HubServer()
        self.cache, self.models = home / "hf/hub", home / "models"
        self.env = {
            k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING", "TRANSFORMERS_", "XDG_"))
        }
        self.env |= {
            "HOME": str(home),
            "HF_HOME": str(home / "hf"),
            "HF_ENDPOINT": self.hub.url,
            "RADISH_MODELS": str(self.models),
            "no_proxy": "*",
        }

    def __call__(self, *args, **env):
        return self.radish("pull", *args, env=self.env | env)

    def ok(self, *args, **env):
        r = self(*args, **env)
        assert r.returncode == 0, r.err
        return Path(r.out.rstrip("\n"))

    def fails(self, *args, code=1, **env):
        r = self(*args, **env)
        assert r.returncode == code and not r.out, (r.returncode, r.out, r.err)
        assert "Traceback" not in r.err and "Sanitizer" not in r.err
        return r.err

    def start(self, *args, **kw):
        kw = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": self.env} | kw
        return self.radish.start("pull", *args, **kw)

    def folder(self, repo=REPO):
        return self.cache / ("models--" + repo.replace("/", "--"))

    def partial(self, data=MODEL):
        return self.folder() / "blobs" / (sha256(data) + ".incomplete")

    def nothing_but_partials(self):
        """No name in the cache stands for bytes that were not checked."""
        for path in self.cache.rglob("*"):
            assert not path.is_symlink() and (not path.is_file() or path.suffix in (".incomplete", ".lock")), path


@pytest.fixture
def pull(radish, tmp_path):
    p = Pull(radish, tmp_path)
    p.commit = p.hub.add(REPO, {"tiny-Q4_K_M.gguf": MODEL, "README.md": b"# tiny\n"})
    yield p
    p.hub.close()


# ---- the layout ----


def test_a_pull_leaves_blobs_refs_and_snapshots(pull):
    path = pull.ok(REPO)
    assert path == pull.folder() / "snapshots" / pull.commit / "tiny-Q4_K_M.gguf"
    assert path.read_bytes() == MODEL and os.readlink(path) == "../../blobs/" + sha256(MODEL)
    assert (pull.folder() / "refs/main").read_text() == pull.commit
    assert os.listdir(pull.folder() / "blobs") == [sha256(MODEL)] and os.listdir(path.parent) == [path.name]
    assert (pull.folder() / "blobs" / sha256(MODEL)).stat().st_mode & 0o777 == 0o666 & ~os.umask(os.umask(0o22))
    n = len(pull.hub.requests("/resolve/"))
    assert pull.ok(REPO) == path and len(pull.hub.requests("/resolve/")) == n  # nothing is fetched twice


def test_huggingface_hub_finds_what_radish_pulled_and_the_other_way_round(pull, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    path = pull.ok(REPO)
    found = hub.hf_hub_download(REPO, path.name, cache_dir=pull.cache, endpoint=pull.hub.url)
    assert Path(found) == path and len(pull.hub.requests("/blob/")) == 1
    assert Path(hub.hf_hub_download(REPO, path.name, cache_dir=pull.cache, local_files_only=True)) == path
    info = hub.scan_cache_dir(pull.cache)
    assert not info.warnings and [r.repo_id for r in info.repos] == [REPO]
    assert info.size_on_disk == len(MODEL)

    pull.hub.add("org/other", {"deep/er/b-Q8_0.gguf": MODEL[::-1], "c.txt": SMALL})
    theirs = hub.hf_hub_download("org/other", "deep/er/b-Q8_0.gguf", cache_dir=pull.cache, endpoint=pull.hub.url)
    n = len(pull.hub.requests("/blob/"))
    assert str(pull.ok("org/other")) == theirs and len(pull.hub.requests("/blob/")) == n
    assert str(pull.ok("org/other/c.txt")).endswith("/c.txt")
    assert (
        Path(hub.hf_hub_download("org/other", "c.txt", cache_dir=pull.cache, local_files_only=True)).read_bytes()
        == SMALL
    )


def test_names_with_folders_and_odd_letters(pull):
    name = "Q8 0 é&?#%41/sub+folder/weights-Q8_0.gguf"
    pull.hub.add("org/deep", {name: MODEL, "x.txt": SMALL})
    path = pull.ok("org/deep")
    assert path.read_bytes() == MODEL and str(path).endswith("/" + name)
    assert os.readlink(path) == "../../../../blobs/" + sha256(MODEL)
    assert pull.ok("org/deep/x.txt").read_bytes() == SMALL
    assert os.readlink(pull.ok("org/deep/x.txt")) == "../../blobs/" + git_sha(SMALL)


def test_a_revision_keeps_its_own_snapshot(pull):
    newer = pull.hub.add(REPO, {"tiny-Q4_K_M.gguf": MODEL + b"newer"}, branch="refs/pr/1")
    first = pull.ok(REPO)
    second = pull.ok(REPO, "--revision", "refs/pr/1")
    assert newer in str(second) and second.read_bytes() == MODEL + b"newer" and first.read_bytes() == MODEL
    assert (pull.folder() / "refs/refs/pr/1").read_text() == newer
    assert pull.ok("%s@%s" % (REPO, pull.commit)) == first and not (pull.folder() / "refs" / pull.commit).exists()
    assert "Repository not found" in pull.fails(REPO + "@nothing")


def test_a_model_as_published_and_a_list_in_pages(pull):
    files = {
        "config.json": SMALL,
        "tokenizer.json": b"{}" + b" " * 100,
        "model-00001-of-00002.safetensors": MODEL,
        "model-00002-of-00002.safetensors": MODEL[::-1],
        "pytorch_model.bin": b"pickle" * 100,
        "onnx/model.onnx": b"onnx" * 100,
    }
    pull.hub.add("org/hf", files)
    pull.hub.page = 2
    path = pull.ok("org/hf")
    assert sorted(os.listdir(path)) == sorted(f for f in files if f.startswith(("config", "tokenizer", "model-")))
    assert all((path / f).read_bytes() == files[f] for f in os.listdir(path))
    assert len(pull.hub.requests("cursor=")) == 3


# ---- which quantisation ----


def quants(**sizes):
    """GGUF files of these sizes in KiB, all different."""
    return {"m-%s.gguf" % q: b"GGUF" + hashlib.sha256(q.encode()).digest() * (32 * kib) for q, kib in sizes.items()}


def test_the_quantisation_fits_the_memory_and_the_reason_is_said(pull):
    pull.hub.add("org/many", quants(Q2_K=200, Q3_K_M=300, Q4_K_M=400, Q6_K=600, F16=1600, IQ4_XS=380))
    r = pull("org/many")
    assert r.returncode == 0 and "m-Q4_K_M.gguf" in r.out
    assert "Q4_K_M" in r.err and "fits in" in r.err and "Q2_K (0 MiB)" in r.err and "quarter" in r.err
    base = 512 << 20  # hub_memory_for: 9/8 of the file beside it
    assert "m-Q3_K_M" in str(pull.ok("org/many", "--memory", str(base + 350 * 1152)))
    assert "m-Q2_K" in str(pull.ok("org/many", "--memory", str(base + 250 * 1152)))
    err = pull.fails("org/many", "--memory", str(base))
    assert "smallest, Q2_K" in err and "GiB of memory" in err
    r = pull("org/many:f16", "--memory", str(base))
    assert r.returncode == 0 and "m-F16" in r.out and "may not fit" in r.err
    r = pull("org/many:IQ4_XS")
    assert r.returncode == 0 and "cannot compute" in r.err
    err = pull.fails("org/many:Q5_K_M")
    assert "there is no Q5_K_M" in err and "Q6_K" in err


def test_a_small_model_is_taken_with_eight_bits(pull):
    pull.hub.add("org/small", quants(Q4_K_M=400, Q8_0=800))
    r = pull("org/small", "--memory", "16G")
    assert r.returncode == 0 and "m-Q8_0.gguf" in r.out and "small" in r.err


def test_list_downloads_nothing(pull):
    pull.hub.add("org/many", quants(Q4_K_M=400, Q2_K=200, IQ1_S=100) | {"mmproj-F16.gguf": MODEL})
    r = pull("org/many", "--list")
    lines = r.out.splitlines()
    assert r.returncode == 0 and [line.split()[0] for line in lines] == ["IQ1_S", "Q2_K", "Q4_K_M"]
    assert "would be pulled" in lines[2] and "cannot compute" in lines[0]
    assert not pull.hub.requests("/resolve/") and not pull.cache.exists()


def test_all_parts_of_a_split_model_come(pull):
    parts = {"Q8_0/m-Q8_0-%05d-of-00003.gguf" % i: MODEL + bytes([i]) for i in (1, 2, 3)}
    pull.hub.add("org/split", parts | {"m-Q4_0-00001-of-00002.gguf": MODEL})
    path = pull.ok("org/split")
    assert path.name == "m-Q8_0-00001-of-00003.gguf" and len(os.listdir(path.parent)) == 3
    assert pull.ok("org/split/Q8_0/m-Q8_0-00002-of-00003.gguf") == path
    assert "the other parts of it are missing" in pull.fails("org/split/m-Q4_0-00001-of-00002.gguf")


def test_one_label_of_two_files_has_to_be_said_apart(pull):
    pull.hub.add("org/two", {"a-Q4_0.gguf": MODEL, "b-Q4_0.gguf": MODEL[::-1]})
    err = pull.fails("org/two:Q4_0")
    assert "a-Q4_0.gguf" in err and "b-Q4_0.gguf" in err
    assert pull.ok("org/two/b-Q4_0.gguf").read_bytes() == MODEL[::-1]
    assert "neither a GGUF file nor" in (pull.hub.add("org/none", {"a.txt": SMALL}) and pull.fails("org/none"))


# ---- a network with faults ----


def test_a_body_that_breaks_off_is_gone_on_with(pull):
    pull.hub.faults["tiny-Q4_K_M.gguf"] = [cut(1000), cut(0), cut(200000), status(503, {"Retry-After": "1"})]
    r = pull(REPO)
    assert r.returncode == 0 and Path(r.out.strip()).read_bytes() == MODEL
    ranges = [s.headers.get("range") for s in pull.hub.requests("/blob/")]
    assert ranges == [None, "bytes=1000-", "bytes=1000-", "bytes=201000-", "bytes=201000-"]
    assert "trying again" in r.err and "503" in r.err


def test_the_next_pull_goes_on_where_one_was_stopped(pull):
    pull.hub.faults["tiny-Q4_K_M.gguf"] = [stall(100000, 60)]
    p = pull.start(REPO)
    while not pull.partial().exists() or pull.partial().stat().st_size < 100000:
        assert p.poll() is None, p.stderr.read()
        time.sleep(0.01)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=60)
    assert p.returncode == 130 and "goes on from here" in err and out == ""
    pull.nothing_but_partials()
    assert not (pull.folder() / "refs").exists()
    assert pull.ok(REPO).read_bytes() == MODEL
    assert pull.hub.requests("/blob/")[-1].headers["range"] == "bytes=100000-"
    assert not pull.partial().exists()


def test_silence_is_a_break(pull):
    pull.hub.faults["tiny-Q4_K_M.gguf"] = [stall(5000, 60)]
    r = pull(REPO, "--timeout", "1")
    assert r.returncode == 0 and "trying again" in r.err
    assert pull.hub.requests("/blob/")[-1].headers["range"] == "bytes=5000-"


def test_a_server_without_ranges_begins_anew(pull):
    pull.hub.faults["tiny-Q4_K_M.gguf"] = [cut(1000), whole()]
    assert pull.ok(REPO).read_bytes() == MODEL


def test_other_bytes_than_announced_never_get_a_name(pull):
    wrong = MODEL[:-1] + b"?"
    pull.hub.faults["tiny-Q4_K_M.gguf"] = [swap(wrong)]
    err = pull.fails(REPO)
    assert sha256(wrong) in err and sha256(MODEL) in err and not pull.partial().exists()
    pull.nothing_but_partials()
    for other in (MODEL + b"more", MODEL[:-5], b""):
        pull.hub.faults["tiny-Q4_K_M.gguf"] = [swap(other)]
        assert "were announced" in pull.fails(REPO)
        pull.nothing_but_partials()
    pull.hub.add("org/other", {"x-Q8_0.gguf": MODEL, "small.json": SMALL})
    pull.hub.faults["small.json"] = [swap(SMALL[::-1])]
    assert "git's SHA-1" in pull.fails("org/other/small.json")
    assert pull.ok(REPO).read_bytes() == MODEL


def test_a_damaged_beginning_is_found_and_fetched_again(pull):
    for damaged in (b"x" * 5000, b"x" * len(MODEL), b"x" * (len(MODEL) + 1)):
        pull.partial().parent.mkdir(parents=True, exist_ok=True)
        pull.partial().write_bytes(damaged)
        assert pull.ok(REPO).read_bytes() == MODEL
        (pull.folder() / "blobs" / sha256(MODEL)).unlink()


@pytest.mark.parametrize("code", [429, 500, 503, 408])
def test_passing_refusals_are_waited_for(pull, code):
    pull.hub.faults["api/revision"] = [status(code, {"Retry-After": "1"})]
    pull.hub.faults["api/tree"] = [status(code, {"Retry-After": "1"})]
    pull.hub.faults["resolve/tiny-Q4_K_M.gguf"] = [status(code, {"Retry-After": "1"})]
    r = pull(REPO)
    assert r.returncode == 0 and r.err.count("trying again in 1 s") == 3 and str(code) in r.err


def test_patience_ends(pull):
    pull.hub.faults["api/revision"] = [status(429, {"Retry-After": "1"})] * 9
    err = pull.fails(REPO, "--retries", "1")
    assert "429" in err and "tried 2 times" in err and len(pull.hub.seen) == 2
    pull.hub.faults["api/revision"] = [status(429, {"Retry-After": "86400"})]
    assert "more than 300 s" in pull.fails(REPO)
    assert len(pull.hub.seen) == 3


def test_ctrl_c_ends_a_wait(pull):
    pull.hub.faults["api/revision"] = [status(429, {"Retry-After": "200"})]
    p = pull.start(REPO)
    assert "trying again in 200 s" in p.stderr.readline()
    p.send_signal(signal.SIGINT)
    assert p.wait(timeout=60) == 130


def test_no_server_and_no_hub(pull):
    err = pull.fails(REPO, "--retries", "0", HF_ENDPOINT="http://127.0.0.1:9")
    assert "127.0.0.1:9 cannot be reached" in err and "HF_ENDPOINT" in err
    err = pull.fails(REPO, "--retries", "0", HF_ENDPOINT="http://hub.invalid", no_proxy="*")
    assert "hub.invalid is not found: is this machine on the network?" in err
    pull.hub.faults["api/revision"] = [status(200, {"Content-Length": "0"})]
    assert "no JSON" in pull.fails(REPO)
    assert "Repository not found" in pull.fails("org/nothing")
    assert "HF_ENDPOINT" in pull.fails(REPO, HF_ENDPOINT="file:///etc")


@pytest.mark.parametrize(
    "code,told",
    [
        (401, "Check how it is spelled; for a private or gated one set HF_TOKEN"),
        (403, "ask for access there, then set HF_TOKEN"),
        (404, "no such model, revision or file (404). Check how it is spelled"),
        (418, "answered with status 418"),
    ],
)
def test_a_refusal_says_what_to_do_next(pull, code, told):
    for where in ("api/revision", "resolve/tiny-Q4_K_M.gguf"):
        pull.hub.faults[where] = [status(code)]
        assert told in pull.fails(REPO)


def test_two_pulls_at_once_fetch_it_once(pull):
    pull.hub.faults["tiny-Q4_K_M.gguf"] = [stall(1000, 3)]
    both = [pull.start(REPO, "--timeout", "2") for _ in range(2)]
    ends = [p.communicate(timeout=120) for p in both]
    assert [p.returncode for p in both] == [0, 0], ends
    assert ends[0][0] == ends[1][0] and Path(ends[0][0].strip()).read_bytes() == MODEL
    assert [s.headers.get("range") for s in pull.hub.requests("/blob/")] == [None, "bytes=1000-"]
    assert "another program downloads" in ends[0][1] + ends[1][1]


# ---- the token ----


def test_the_token_goes_to_the_hub_alone(pull):
    pull.hub.token = "hf_secret"
    err = pull.fails(REPO)
    assert "401" in err and "HF_TOKEN" in err and "Invalid credentials" in err
    pull.hub.seen.clear()
    r = pull(REPO, HF_TOKEN="hf_secret")
    assert r.returncode == 0 and "hf_secret" not in r.err
    for seen in pull.hub.seen:
        assert seen.headers.get("authorization") == ("Bearer hf_secret" if seen.server == "hub" else None), seen
    assert {s.server for s in pull.hub.seen} == {"hub", "store"}


def test_the_token_of_a_login_is_found_and_a_wrong_one_is_not_said(pull):
    pull.hub.token = "hf_secret"
    (pull.home / "hf").mkdir()
    (pull.home / "hf/token").write_text("hf_secret\n")
    assert pull.ok(REPO).exists()
    err = pull.fails(REPO, HF_TOKEN="hf_wrong")
    assert "does not accept the token (401)" in err and "hf_wrong" not in err
    assert "more than one line" in pull.fails(REPO, HF_TOKEN="a\r\nX-Evil: 1")


def test_a_redirect_away_from_the_hub_takes_no_token_along(pull):
    other = HubServer()
    other.add(REPO, {"tiny-Q4_K_M.gguf": MODEL})
    pull.hub.token = "hf_secret"
    pull.hub.faults["resolve/tiny-Q4_K_M.gguf"] = [to("%s/%s/resolve/main/tiny-Q4_K_M.gguf" % (other.url, REPO))]
    assert pull.ok(REPO, HF_TOKEN="hf_secret").read_bytes() == MODEL
    assert other.seen and not any("authorization" in s.headers for s in other.seen)
    other.close()


@pytest.mark.parametrize("where", ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/x", "//", "loop"])
def test_redirects_that_lead_nowhere(pull, where):
    if where == "loop":
        where = "%s/%s/resolve/%s/tiny-Q4_K_M.gguf" % (pull.hub.url, REPO, pull.commit)
    pull.hub.faults["resolve/tiny-Q4_K_M.gguf"] = [to(where)] * 20
    err = pull.fails(REPO, "--retries", "0")
    assert "redirects" in err or "status 302" in err or "URL" in err, err
    pull.nothing_but_partials()


# ---- hostile hubs, hostile neighbours ----

EVIL_PATHS = ["../../../evil-Q4_0.gguf", "/tmp/evil-Q4_0.gguf", "a/../../evil-Q4_0.gguf", "./x-Q4_0.gguf", "a//x-Q4_0.gguf",
              "x\n-Q4_0.gguf", "a\\..\\x-Q4_0.gguf", "x" * 300 + "-Q4_0.gguf", "d/" * 40 + "x-Q4_0.gguf", "..", "", "a/"]  # fmt: skip


@pytest.mark.parametrize("path", EVIL_PATHS)
def test_a_hub_that_names_paths_outside_is_refused(pull, path):
    pull.hub.edit = lambda entries: entries + [pull.hub.entry(path, MODEL)]
    before = sorted(pull.home.rglob("*"))
    assert "cannot be" in pull.fails(REPO)
    assert sorted(pull.home.rglob("*")) == before


def test_a_hub_that_lies_about_digests_sizes_and_commits(pull):
    entry = pull.hub.entry("x-Q4_0.gguf", MODEL)
    for lie in [
        {"lfs": {"oid": "../../../evil", "size": 5}},
        {"lfs": {"oid": "A" * 64, "size": 5}},
        {"lfs": {"oid": sha256(MODEL), "size": -1}},
        {"lfs": {"oid": sha256(MODEL), "size": "big"}},
        {"lfs": {"oid": sha256(MODEL)}},
        {"path": 5},
        {"oid": None, "lfs": None},
    ]:
        pull.hub.edit = lambda entries: [entry | lie]
        err = pull.fails(REPO)
        assert "cannot be" in err or "no list of files" in err, (lie, err)
    pull.hub.edit = lambda entries: entries + entries
    assert "twice" in pull.fails(REPO)
    pull.hub.edit = lambda entries: {"error": "no"}
    assert "no list of files" in pull.fails(REPO)
    pull.hub.edit = lambda entries: entries
    pull.hub.repos[REPO]["refs"]["main"] = "../../evil"
    pull.hub.repos[REPO]["commits"]["../../evil"] = {}
    assert "names no commit" in pull.fails(REPO)
    assert not pull.cache.exists()


def test_a_list_without_end_or_elsewhere(pull):
    pull.hub.page = 1
    other = HubServer()
    here = pull.hub.json
    pull.hub.json = lambda h, v, headers=None: here(h, v, {"Link": '<%s/x>; rel="next"' % other.url})
    assert "another host" in pull.fails(REPO)
    pull.hub.json = lambda h, v, headers=None: here(
        h, v if "sha" in v else [], {"Link": '<%s%s>; rel="next"' % (pull.hub.url, h.path)}
    )
    assert "does not end" in pull.fails(REPO)
    assert not other.seen
    other.close()


def test_a_file_that_is_also_a_folder(pull):
    pull.hub.add("org/odd", {"model-00001-of-00002.safetensors": MODEL, "config.json": SMALL})
    pull.ok("org/odd")
    pull.hub.add("org/odd", {"a-Q4_0.gguf": MODEL, "a-Q4_0.gguf/b-00001-of-00001-Q8_0.gguf": MODEL})
    pull.ok("org/odd/a-Q4_0.gguf")
    assert "a file stands where a folder belongs" in pull.fails("org/odd:Q8_0")


def test_disk_full_is_said_before_and_in_the_middle(pull):
    huge = pull.hub.entry("tiny-Q4_K_M.gguf", MODEL)
    huge["lfs"]["size"] = 1 << 60
    pull.hub.edit = lambda entries: [huge]
    err = pull.fails(REPO + ":Q4_K_M")
    assert "MiB free" in err and not pull.hub.requests("/resolve/")
    pull.hub.edit = lambda entries: entries

    def small_files():
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))

    p = pull.start(REPO, preexec_fn=small_files)
    out, err = p.communicate(timeout=60)
    assert p.returncode == 1 and "cannot be written" in err and out == ""
    pull.nothing_but_partials()
    assert pull.ok(REPO).read_bytes() == MODEL
    assert pull.hub.requests("/blob/")[-1].headers["range"] == "bytes=100000-"


def test_links_in_the_cache_lead_nowhere(pull):
    victim = pull.home / "victim"
    victim.mkdir()
    (victim / "file").write_bytes(b"precious")
    pull.partial().parent.mkdir(parents=True)
    pull.partial().symlink_to(victim / "file")
    assert pull.ok(REPO).read_bytes() == MODEL
    for name in ("blobs", "snapshots", "refs", "snapshots/" + pull.commit):
        subprocess.run(["rm", "-rf", pull.folder()], check=True)
        (pull.folder() / name).parent.mkdir(parents=True)
        (pull.folder() / name).symlink_to(victim)
        assert "a symbolic link or a file stands where a folder belongs" in pull.fails(REPO), name
    subprocess.run(["rm", "-rf", pull.folder()], check=True)
    pull.partial().parent.mkdir(parents=True)
    os.link(victim / "file", pull.partial())  # a second name of somebody's file
    assert pull.ok(REPO).read_bytes() == MODEL
    (pull.folder() / "blobs" / sha256(MODEL)).unlink()
    os.mkfifo(pull.partial())
    assert pull.ok(REPO).read_bytes() == MODEL
    assert os.listdir(victim) == ["file"] and (victim / "file").read_bytes() == b"precious"


def test_the_cache_may_lie_behind_a_link_of_the_user(pull):
    (pull.home / "big-disk").mkdir()
    (pull.home / "link").symlink_to(pull.home / "big-disk")
    path = pull.ok(REPO, HF_HUB_CACHE=str(pull.home / "link"))
    assert path.read_bytes() == MODEL and str(path).startswith(str(pull.home / "link"))
    assert pull.ok(REPO, HF_HUB_CACHE="~/there").is_relative_to(pull.home / "there")
    err = pull.fails(REPO, HF_HUB_CACHE="/proc/none")
    assert "/proc/none" in err


# ---- without a network ----


def test_offline_only_looks(pull):
    err = pull.fails(REPO, HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE" in err and not pull.hub.seen
    path = pull.ok(REPO)
    n = len(pull.hub.seen)
    assert pull.ok(REPO, HF_HUB_OFFLINE="1") == path == pull.ok(REPO + ":Q4_K_M", HF_HUB_OFFLINE="true")
    assert "Q8_0" in pull.fails(REPO + ":Q8_0", HF_HUB_OFFLINE="1")
    assert len(pull.hub.seen) == n


# ---- URLs, files, names ----


def test_a_url_of_the_hub_is_its_model(pull):
    path = pull.ok(REPO)
    for url in [
        "/%s" % REPO,
        "/%s/tree/main" % REPO,
        "/%s/blob/main/tiny-Q4_K_M.gguf" % REPO,
        "/%s/resolve/main/tiny-Q4_K_M.gguf?download=true" % REPO,
    ]:
        assert pull.ok(pull.hub.url + url) == path
    assert pull.ok("hf.co/" + REPO) == path == pull.ok("hf:" + REPO)


def test_a_plain_url_goes_to_the_models_and_sees_no_token(pull):
    url = "%s/plain/%s/x.gguf" % (pull.hub.blobs.url.replace("store", ""), sha256(MODEL))
    url = "%s/plain/%s/x.gguf?sig=1" % (pull.hub.url, sha256(MODEL))
    pull.hub.faults["x.gguf"] = [cut(5000)]
    path = pull.ok(url, "--sha256", sha256(MODEL))
    assert path == pull.models / "x.gguf" and path.read_bytes() == MODEL and os.listdir(pull.models) == ["x.gguf"]
    assert pull.hub.requests("/plain/")[-1].headers["range"] == "bytes=5000-"
    assert pull.hub.requests("/plain/")[-1].headers["if-range"] == '"%s"' % sha256(MODEL)
    assert pull.ok(url) == path  # it is there
    assert "there already" in pull.fails(url.replace(sha256(MODEL), sha256(b"# tiny\n")))
    assert "wanted " + "0" * 64 in pull.fails(url, "--name", "y", "--sha256", "0" * 64)
    page = pull.hub.add("org/page", {"p": b"<!DOCTYPE html>" * 10}) and sha256(b"<!DOCTYPE html>" * 10)
    assert "it is no model" in pull.fails("%s/plain/%s/z.gguf" % (pull.hub.url, page))
    assert os.listdir(pull.models) == ["x.gguf"]
    other = HubServer()
    other.add(REPO, {"x": MODEL})
    assert pull.ok("%s/plain/%s/w.gguf" % (other.url, sha256(MODEL)), HF_TOKEN="hf_secret").read_bytes() == MODEL
    assert other.seen and not any("authorization" in s.headers for s in other.seen)
    other.close()


def test_a_url_needs_the_name_of_a_model(pull):
    for url in ("/", "/a/", "/a/..gguf", "/a/%2e%2e%2fx.gguf", "/a/b.zip"):
        assert "name" in pull.fails("http://127.0.0.1:9" + url)
    assert "http and https" in pull.fails("file:///etc/passwd")
    assert "--name" in pull.fails("http://127.0.0.1:9/x.gguf", "--name", "../x")
    assert not pull.models.exists()


def test_a_file_and_a_pulled_model_get_names(pull, radish):
    here = pull.home / "here.gguf"
    here.write_bytes(MODEL)
    assert pull.ok(str(here)) == here and os.readlink(pull.models / "here.gguf") == str(here)
    target = pull.ok(REPO, "--name", "mine")
    assert os.readlink(pull.models / "mine.gguf") == str(target)
    r = radish("list", env=pull.env)
    assert r.returncode == 0 and "here" in r.out and "mine" in r.out
    (pull.models / "real.gguf").write_bytes(b"GGUF")
    assert "there already" in pull.fails(str(here), "--name", "real")
    assert (pull.models / "real.gguf").read_bytes() == b"GGUF"
    assert "no such file" in pull.fails("./nothing.gguf")


@pytest.mark.parametrize("word", ["org", "org/", "/x/y", "a--b/c", "org/na..me", "org/x:", "org/x@", "org/x@a..b", "org/x:a b",
                                  "org/x/../y", "-x/y", "org/x//y", "örg/x", "org/x:Q4 0", "org/x@v/../y"])  # fmt: skip
def test_what_is_no_name_is_refused_before_anything_is_asked(pull, word):
    r = pull("--", word)
    assert r.returncode in (1, 2) and r.err and not r.out
    assert not pull.hub.seen and not pull.cache.exists()


# ---- the bar ----


def test_a_terminal_shows_rate_and_time_left_and_a_pipe_does_not(pull):
    pull.hub.faults["tiny-Q4_K_M.gguf"] = [stall(100000, 2)]
    r = pull(REPO, "--timeout", "1")
    assert r.returncode == 0 and "%" not in r.err and "\r" not in r.err
    (pull.folder() / "blobs" / sha256(MODEL)).unlink()
    pull.hub.faults["tiny-Q4_K_M.gguf"] = [stall(100000, 2)]
    master, slave = pty.openpty()
    p = pull.start(REPO, "--timeout", "1", stderr=slave)
    os.close(slave)
    shown = b""
    try:
        while piece := os.read(master, 65536):
            shown += piece
    except OSError:
        pass
    assert p.wait(timeout=60) == 0
    text = shown.decode()
    assert "tiny-Q4_K_M.gguf [" in text and " 32 %" in text and "0.1/0.3 MiB" in text
    assert text.rstrip().endswith("\x1b[K") or "\r\x1b[K" in text[-40:]
