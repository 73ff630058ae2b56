"""Fixtures: one server for most tests, a maker of others."""

import pytest
from radish_server import Server


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
        if s.process.poll() is None:
            s.process.kill()
            s.process.wait()
