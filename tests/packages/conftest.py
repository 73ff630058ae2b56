"""What the tests of packages share: the Debian packages of the build, made once.

RADISH_BUILD names the build folder (default build/).
"""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("RADISH_BUILD") or ROOT / "build")
sys.path += [str(ROOT / "tests/server"), str(ROOT / "tests/cli")]


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def build():
    return BUILD


@pytest.fixture(scope="session")
def debs(tmp_path_factory):
    """{name: path}; one set for all processes of a test run."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder = folder / "debs"
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(folder.glob("*.deb")):
            subprocess.run(
                ["cpack", "--config", BUILD / "CPackConfig.cmake", "-B", folder / "work"],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            for deb in (folder / "work").glob("*.deb"):
                deb.rename(folder / deb.name)
    return {deb.name.split("_")[0]: deb for deb in sorted(folder.glob("*.deb"))}


@pytest.fixture(scope="session")
def model():
    path = Path(os.environ.get("RADISH_MODELS") or Path.home() / ".cache/radish/models", "smollm2.gguf")
    assert path.is_file(), f"{path} is missing: tools/fetch-model smollm2"
    return path
