"""Fixtures: one server for most tests, a maker of others."""

import contextlib
import subprocess

import chromium
import pytest
from radish_server import BUILD, SANITIZED, TINY, Server

# Leaks are reported, and lines counted, by a process that ends by itself.
LOOKED_AT = SANITIZED or BUILD.name == "coverage"


def until_stopped(*flags):
    """A server; when its tests are over everything in it adds up, and it stops as it should."""
    s = Server(*flags)
    yield s
    assert s.stats()["engine"]["accounting_errors"] == 0
    assert s.stop() == 0


@pytest.fixture(scope="session")
def server():
    yield from until_stopped("--threads", "2", "--kv-tokens", "65536")


@pytest.fixture(scope="module")
def small():
    """Two may run, the rest queues; a request of thousands of tokens takes as long as a test wants."""
    yield from until_stopped("--threads", "1", "--kv-tokens", "16384", "--max-running", "2")


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


@pytest.fixture
def tenants(make_server, tmp_path):
    """A server with two tenants, the headers of each, and those of the server's own key."""
    keys = tmp_path / "keys"
    keys.write_text("alice-key\nbob-key\n")
    s = make_server(
        "--api-key", "own-key", "--api-key-file", str(keys), "--threads", "1", "--kv-tokens", "1024", model=TINY
    )
    return s, *({"Authorization": f"Bearer {k}-key"} for k in ("alice", "bob", "own"))


@pytest.fixture(scope="module")
def browser():
    with chromium.Page() as p:
        yield p


@pytest.fixture
def page(browser):
    browser.fresh()
    return browser
