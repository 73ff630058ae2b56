"""The wheel: built, installed into a fresh environment, typed, and everything that tests/python asks of it.

Program and library come from the build folder; with RADISH_LONG=1 once more from source, linked with archives.
"""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from throwaway import run
from vision_model import make_pointing_model, picture

MODELS = Path(os.environ.get("RADISH_MODELS") or Path.home() / ".cache/radish/models")
KINDS = ["prebuilt", "source"] if os.environ.get("RADISH_LONG") else ["prebuilt"]
USE = """
import radish
from typing import assert_type

engine = radish.Engine("m.gguf", n_threads=2)
assert_type(engine.chat([{"role": "user", "content": "x"}], temperature=0.5), radish.Answer)
for piece in engine.complete_stream("x", stop=["y"]):
    assert_type(piece, radish.Piece)
engine.chat([{"role": "user", "content": "x"}], temprature=0.5)
engine.chat([{"role": "user", "content": "x"}], max_tokens="many")
"""


@pytest.fixture(scope="module", params=KINDS)
def wheel(request, root, build, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    options = ["-C", f"cmake.define.RADISH_PREBUILT={build.resolve()}"] if request.param == "prebuilt" else []
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, root, *options])
    found = list(folder.glob("*.whl"))
    assert len(found) == 1
    if request.param == "source":
        with zipfile.ZipFile(found[0]) as z:
            z.extract("radish/lib/libradish.so", folder)
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", run(["readelf", "-d", folder / "radish/lib/libradish.so"]))
        assert sorted(needed) == ["ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6"]
        names = [
            n.split()[-1] for n in run(["nm", "-D", "--defined-only", folder / "radish/lib/libradish.so"]).splitlines()
        ]
        assert [n for n in names if not n.startswith("rd_")] == []
    return found[0]


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """Of a fresh environment with the wheel, what it wants, and pytest."""
    venv = tmp_path_factory.mktemp("venv")
    run([sys.executable, "-m", "venv", venv])
    run([venv / "bin/python", "-m", "pip", "--disable-pip-version-check", "-q", "install", wheel, "pytest"])
    return venv / "bin/python"


def test_the_wheel_is_for_every_python_and_has_the_version_of_the_tree(root, wheel):
    version = re.search(r"^project\(radish VERSION ([0-9.]+)", (root / "CMakeLists.txt").read_text(), re.MULTILINE)[1]
    assert wheel.name.startswith(f"radish-{version}-py3-none-linux_")
    with zipfile.ZipFile(wheel) as z:
        names = z.namelist()
        programs = {n for n in names if z.getinfo(n).external_attr >> 16 & 0o100}
    assert {"radish/bin/radish", "radish/libexec/radish/fetch-model"} <= programs
    assert {"radish/py.typed", "radish/lib/libradish.so", "radish/_capi.py"} <= set(names)


def test_the_bindings_do_what_they_promise(root, python, tmp_path):
    model = MODELS / "smollm2.gguf"
    assert model.is_file(), f"{model} is missing: tools/fetch-model smollm2"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "PYTHON"))}
    env |= {"RADISH_MODEL": str(model), "RADISH_PACKED": str(tmp_path), "RADISH_PAGE": str(root / "docs/python.md")}
    env |= {"RADISH_POINTING": str(make_pointing_model(tmp_path))}
    (tmp_path / "guiactor/screen.png").write_bytes(picture(16, width=96, height=72))
    words = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", root / "tests/python"]
    r = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=env)
    assert r.returncode == 0, r.stdout[-8000:] + r.stderr[-2000:]
    print(r.stdout.splitlines()[-1])
    assert re.search(r"^\d+ passed in", r.stdout, re.MULTILINE)  # none was skipped


def test_mypy_finds_nothing_in_it_and_what_is_wrong_in_a_program(python, tmp_path):
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "--cache-dir", tmp_path]
    run([*mypy, "-p", "radish"], cwd=tmp_path)
    (tmp_path / "use.py").write_text(USE)
    said = subprocess.run([*mypy, "use.py"], capture_output=True, text=True, cwd=tmp_path).stdout
    assert re.findall(r"^use.py:(\d+): error: .*\[([\w-]+)\]$", said, re.MULTILINE) == [
        ("9", "call-arg"),
        ("10", "arg-type"),
    ], said
