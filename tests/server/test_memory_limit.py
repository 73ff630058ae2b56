"""--memory-limit: what does not fit is refused or fails by itself, and the server goes on; /stats tells use and peak."""

import http.client
import threading

from radish_server import TINY

FLAGS = ("--threads", "1", "--kv-tokens", "4096")
MIB = 1 << 20


def test_a_model_that_needs_more_than_the_limit_is_not_loaded(make_server, tmp_path):
    need = make_server(*FLAGS, model=TINY).stats()["memory"]
    assert need["limit_bytes"] == 0 and 0 < need["used_bytes"] <= need["peak_bytes"]
    assert need["used_bytes"] >= need["kv_bytes"]
    with open(tmp_path / "log", "w") as log:
        refused = make_server(*FLAGS, "--memory-limit", str(need["peak_bytes"] // 2), model=TINY, wait=False, log=log)
        assert refused.process.wait(60) == 1
    assert "memory" in (tmp_path / "log").read_text()
    roomy = make_server(*FLAGS, "--memory-limit", str(need["peak_bytes"] + 16 * MIB), model=TINY)
    said = roomy.stats()["memory"]
    assert said["limit_bytes"] == need["peak_bytes"] + 16 * MIB >= said["peak_bytes"]


def test_clients_that_want_more_are_refused_and_the_server_goes_on(make_server):
    """24 bodies of 4 MB, more than there is room for at once; an ordinary request is answered before and after."""
    need = make_server(*FLAGS, model=TINY).stats()["memory"]["peak_bytes"]
    limit = need + 24 * MIB
    s = make_server(*FLAGS, "--memory-limit", str(limit), model=TINY)
    ordinary = {"prompt": "the", "max_tokens": 4, "temperature": 0}
    before = s.ok("/v1/completions", ordinary)["choices"][0]["text"]
    body = b'{"prompt":"' + b"x " * (2 * MIB) + b'","max_tokens":1}'
    seen = []

    def ask():
        try:
            seen.append(s.request("POST", "/v1/completions", body)[0])
        except (OSError, http.client.HTTPException):
            seen.append(0)  # cut: nothing was left for an answer

    threads = [threading.Thread(target=ask) for _ in range(24)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(seen) == 24 and not {200, 201} & set(seen), seen
    memory = s.stats()["memory"]
    assert memory["peak_bytes"] <= limit + MIB and memory["limit_bytes"] == limit
    assert s.ok("/v1/completions", ordinary)["choices"][0]["text"] == before
    assert s.stop() == 0
