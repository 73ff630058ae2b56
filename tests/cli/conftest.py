"""What the tests of the command line share: the program, the model, a text.

RADISH_BUILD names the build folder (default build/). The model is smollm2, fetched by tools/fetch-model.
"""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("RADISH_BUILD") or ROOT / "build")
os.environ["RADISH_CACHE"] = ""  # no disk cache
os.environ["RADISH_CONFIG"] = ""  # nor what this machine's servers are set to
MODELS = Path(os.environ.get("RADISH_MODELS") or Path.home() / ".cache/radish/models")


class Program:
    path = str(BUILD / "radish")

    def __call__(self, *args, stdin="", **kw):
        """Runs it to its end; stdin may be bytes."""
        data = stdin if isinstance(stdin, bytes) else stdin.encode()
        r = subprocess.run([self.path, *map(str, args)], input=data, capture_output=True, timeout=300, **kw)
        r.out, r.err = r.stdout.decode(errors="replace"), r.stderr.decode(errors="replace")
        return r

    def start(self, *args, **kw):
        return subprocess.Popen([self.path, *map(str, args)], **kw)


@pytest.fixture(scope="session")
def radish():
    assert os.access(Program.path, os.X_OK), "%s is missing: build first, or set RADISH_BUILD" % Program.path
    return Program()


@pytest.fixture(scope="session")
def model():
    path = MODELS / "smollm2.gguf"
    assert path.is_file(), "%s is missing: tools/fetch-model smollm2" % path
    return str(path)


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def build():
    return BUILD
