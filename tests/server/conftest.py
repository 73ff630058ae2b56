"""Fixtures: one server for most tests, a maker of others."""

import contextlib
import subprocess

import pytest
from radish_server import BUILD, SANITIZED, Server

# Leaks are reported, and lines counted, by a process that ends by itself.
LOOKED_AT = SANITIZED or BUILD.name == "coverage"


@pytest.fixture(scope="session")
def server():
    s = Server("--threads", "2", "--kv-tokens", "65536")
    yield s
    assert s.stats()["engine"]["accounting_errors"] == 0
    assert s.stop() == 0


@pytest.fixture
def make_server():
    made = []

    def make(*flags, **options):
        made.append(Server(*flags, **options))
        return made[-1]

    yield make
    for s in made:
        if s.process.poll() is None and LOOKED_AT:
            s.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                s.process.wait(10)
        if s.process.poll() is None:
            s.process.kill()
            s.process.wait()
