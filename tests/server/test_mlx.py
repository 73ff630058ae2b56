"""The server over MLX, in a build that has it (RADISH_BUILD=build/mlx): what is computed and what is found, page by page."""

import threading

import pytest
from radish_server import TINY
from test_backend_table import is_here

pytestmark = pytest.mark.skipif(not is_here("mlx"), reason="this build is without MLX (cmake --preset mlx)")
FLAGS = ["--backend", "mlx", "--ctx", "512", "--page-tokens", "16"]


def prompt(first, n):
    """n token ids of the tiny vocabulary, which no other `first` begins with."""
    return [3 + (first * 7 + i * 5) % 40 for i in range(n)]


def counted(s, ids, **more):
    """The answer, and how many tokens of its prompt were computed."""
    before = s.stats()["tokens"]["prompt_computed"]
    body = {"prompt": ids, "max_tokens": 4, "temperature": 0, "ignore_eos": True, **more}
    answer = s.ok("/v1/completions", body)
    return answer, s.stats()["tokens"]["prompt_computed"] - before


def texts(answer):
    return [c["text"] for c in answer["choices"]]


def test_hits_splits_and_forks_are_counted(make_server):
    s = make_server(*FLAGS, "--kv-tokens", "4096", model=TINY)
    assert s.get("/props")[1]["exact"] is False
    whole, fresh = prompt(1, 100), prompt(1, 70) + prompt(9, 30)
    first, computed = counted(s, whole)
    assert computed == 100
    again, computed = counted(s, whole)
    assert computed <= 1 and texts(again) == texts(first)
    # Another end: the tree splits inside a page (70 = 4 * 16 + 6), and its rows are copied.
    _, computed = counted(s, fresh)
    assert computed == 30
    _, computed = counted(s, fresh)
    assert computed <= 1
    several, computed = counted(s, whole, n=3)
    assert computed <= 3 and len(set(texts(several))) == 1 and texts(several)[0] == texts(first)[0]


def test_what_was_evicted_is_computed_again_with_the_same_text(make_server):
    s = make_server(*FLAGS, "--kv-tokens", "640", model=TINY)
    said = {i: texts(counted(s, prompt(i, 120))[0]) for i in range(8)}
    assert s.stats()["pages"]["evicted"] > 0
    for i in range(8):
        assert texts(counted(s, prompt(i, 120))[0]) == said[i]


def test_requests_join_and_leave_a_batch(make_server):
    s = make_server(*FLAGS, "--kv-tokens", "4096", model=TINY)
    alone = [texts(counted(s, prompt(i, 20 + 9 * i), max_tokens=12 + i)[0]) for i in range(6)]
    assert s.request("DELETE", "/v1/cache")[0] == 200
    got = [None] * 6

    def one(i):
        body = {"prompt": prompt(i, 20 + 9 * i), "max_tokens": 12 + i, "temperature": 0, "ignore_eos": True}
        got[i] = texts(s.ok("/v1/completions", body))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == alone


def test_memory_of_mlx_is_in_the_statistics(make_server):
    s = make_server(*FLAGS, "--kv-tokens", "4096", model=TINY)
    counted(s, prompt(1, 64))
    m = s.stats()["memory"]
    assert 0 < m["library_active_bytes"] <= m["library_peak_bytes"] and m["library_limit_bytes"] > 0
    assert m["library_cache_bytes"] <= 512 << 20


def test_nothing_is_set_aside_beside_pages_that_are_in_the_hosts_memory(make_server):
    def in_ram(*flags):
        s = make_server(*FLAGS, "--kv-tokens", "4096", *flags, model=TINY)
        return s.stats()["budgets"]["ram"]["limit"]

    assert in_ram() == 0
    assert in_ram("--cache-ram", "64M") > 0  # who asks for it gets it


def all_at_once(s):
    """Texts of eight requests of several lengths and temperatures, which come and go while others run."""
    got = [None] * 8

    def one(i):
        body = {"prompt": prompt(i, 20 + 5 * i), "max_tokens": 16 + 6 * i, "temperature": i % 2 * 0.8, "seed": i}
        got[i] = texts(s.ok("/v1/completions", {**body, "ignore_eos": True}))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return got


def test_texts_are_the_same_with_steps_ahead_and_without(make_server):
    flags = [*FLAGS, "--kv-tokens", "4096", "--no-speculation"]
    ahead, waits = make_server(*flags, model=TINY), make_server(*flags, "--no-cuda-graphs", model=TINY)
    assert all_at_once(ahead) == all_at_once(waits)
    assert ahead.stats()["engine"]["steps_ahead"] > 0 and waits.stats()["engine"]["steps_ahead"] == 0
