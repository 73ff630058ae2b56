"""Quick answers wait their turn while the engine computes: all are given, in order, and none is lost."""

import http.client
import threading

import pytest
from radish_server import token_ids


@pytest.fixture(scope="module")
def small():
    from radish_server import Server

    s = Server("--threads", "1", "--kv-tokens", "8192", "--max-running", "2", "--drain", "1")
    yield s
    assert s.stats()["engine"]["accounting_errors"] == 0
    assert s.stop() == 0


def ask(port, n, statuses):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for _ in range(n):
        c.request("GET", "/health")
        r = c.getresponse()
        r.read()
        statuses.append(r.status)
    c.close()


def flood(port, n_connections, n):
    statuses = [[] for _ in range(n_connections)]
    threads = [threading.Thread(target=ask, args=(port, n, s)) for s in statuses]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return statuses


def test_every_one_of_a_flood_is_served_beside_a_generation(small):
    busy = small.open_request(
        "/v1/completions", {"prompt": token_ids(6, seed=1), "max_tokens": 6000, "ignore_eos": True, "stream": True}
    )
    small.wait_until(lambda: small.stats()["requests"]["decode"] == 1)
    assert flood(small.port, 32, 20) == [[200] * 20] * 32
    assert small.stats()["requests"]["decode"] == 1
    busy.close()
    small.wait_idle()
    assert flood(small.port, 8, 50) == [[200] * 50] * 8


def test_a_client_that_leaves_while_it_is_held_back_is_forgotten(small):
    busy = small.open_request(
        "/v1/completions", {"prompt": token_ids(6, seed=2), "max_tokens": 6000, "ignore_eos": True, "stream": True}
    )
    small.wait_until(lambda: small.stats()["requests"]["decode"] == 1)
    for _ in range(10):
        gone = [http.client.HTTPConnection("127.0.0.1", small.port, timeout=60) for _ in range(30)]
        for c in gone:
            c.request("GET", "/health")
        for c in gone:
            c.close()
    assert flood(small.port, 4, 5) == [[200] * 5] * 4
    busy.close()
    small.wait_idle()
