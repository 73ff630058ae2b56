"""One budget for what clients make the server hold (F91), big work beside the io threads, and small stacks (F96)."""

import contextlib
import json
import re
import socket
import time

import pytest
from radish_server import SANITIZED, TINY, words
from test_bad_requests import CASES

CHAT = "/v1/chat/completions"
SMALL = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
PARTS = ("bodies", "trees", "requests", "answers", "unread", "stored")


@pytest.fixture
def tight(make_server):
    s = make_server("--threads", "1", "--kv-tokens", "4096", "--ctx", "64", "--client-memory", "32M", model=TINY)
    yield s
    s.wait_idle()
    s.wait_until(lambda: used(s) == 0)
    assert s.stop() == 0


def used(server):
    m = server.stats()["client_memory"]
    assert m["used"] == sum(m[p] for p in PARTS), m
    return m["used"]


def half_sent(server, n_bytes, n_declared):
    s = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {n_declared}\r\n\r\n"
    s.sendall(head.encode() + b" " * n_bytes)
    return s


def status_of(s):
    data = b""
    while b"\r\n\r\n" not in data:
        part = s.recv(65536)
        if not part:
            break
        data += part
    return int(data.split()[1]), data


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/completion"])
def test_F91_prompts_that_are_answered_are_let_go(make_server, path, stream):
    """Of 2,048 prompts in a body those that wait and those that run are there, not the requests of all that are done."""
    s = make_server("--threads", "1", "--kv-tokens", "4096", model=TINY)
    more = {"max_tokens": 3, "return_token_ids": True} if path.startswith("/v1") else {"n_predict": 3}
    body = {
        "prompt": [[3, 4, 5 + i % 80] for i in range(2048)],
        "ignore_eos": True,
        "stop": ["e"],
        "stream": stream,
    } | more
    alone = s.ok(path, body | {"prompt": body["prompt"][7], "temperature": 0, "stream": False})
    before = s.stats()["memory"]["peak_bytes"]
    status, _, answer = s.request("POST", path, body | {"temperature": 0})
    assert status == 200 and s.stats()["memory"]["peak_bytes"] - before < 24 << 20
    if stream:
        assert answer.count(b'"stop":true' if path == "/completion" else b'"finish_reason":"') == 2048
        return
    answer = json.loads(answer)
    seventh, alone = (answer[7], alone) if path == "/completion" else (answer["choices"][7], alone["choices"][0])
    for a in (seventh, alone):
        for of_the_moment in ("index", "timings", "tokens_cached", "generation_settings"):
            a.pop(of_the_moment, None)
    assert seventh == alone


def test_F91_bodies_that_wait_are_charged_and_refused_beyond_the_share(tight):
    """Bodies of 8 MiB that stop just before their end: the first keep what they have, the next are told to come back."""
    with contextlib.ExitStack() as open_ones:
        waiting = [open_ones.enter_context(half_sent(tight, 8 << 20, (8 << 20) + 1)) for _ in range(2)]
        tight.wait_until(lambda: used(tight) == 16 << 20)
        with half_sent(tight, 7 << 20, 8 << 20) as third:
            status, answer = status_of(third)
        assert status == 429 and b"Retry-After" in answer and b"memory_full" in answer, answer
        assert tight.ok(CHAT, SMALL)  # small ones go on
        assert tight.get("/health")[0] == 200
        assert tight.stats()["client_memory"]["refused"] >= 1
        del waiting
    tight.wait_until(lambda: used(tight) == 0)


def test_F91_a_request_that_no_share_holds_is_413(tight):
    status, answer = tight.post(CHAT, {"messages": [{"role": "user", "content": "a" * (12 << 20)}]})
    said = answer["error"]["message"]
    wants, share, all_clients = (float(n) for n in re.findall(r"([0-9.]+)(?: MiB| that)", said))
    assert status == 413 and "--client-memory" in said and share < wants and share < all_clients / 2, said
    status, answer = tight.post(
        "/v1/messages", {"messages": [{"role": "user", "content": "a" * (12 << 20)}], "max_tokens": 1}
    )
    assert status == 413 and answer["error"]["type"] == "request_too_large", answer


def test_F91_one_key_cannot_take_what_others_need(make_server, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("greedy\nmodest\n")
    s = make_server(
        "--threads",
        "1",
        "--kv-tokens",
        "4096",
        "--ctx",
        "64",
        "--client-memory",
        "64M",
        "--api-key",
        "own",
        "--api-key-file",
        str(keys),
        model=TINY,
        wait=False,
    )
    s.wait_until_health = lambda: s.request("GET", "/health")[0] == 200
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if s.wait_until_health():
                break
    own = {"Authorization": "Bearer own"}
    body = json.dumps({"messages": [{"role": "user", "content": words(60000)}], "max_tokens": 1}).encode()
    with contextlib.ExitStack() as open_ones:
        for _ in range(40):
            c = open_ones.enter_context(socket.create_connection(("127.0.0.1", s.port), timeout=20))
            head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer greedy\r\nContent-Type: application/json\r\nContent-Length: 9000000\r\n\r\n"
            with contextlib.suppress(OSError):  # refused ones are cut
                c.sendall(head.encode() + b" " * 4_000_000)
        time.sleep(0.3)
        m = json.loads(s.request("GET", "/stats", headers=own)[2])["client_memory"]
        assert m["bodies"] > 30 << 20 and m["refused"] > 0, m
        status, _, answer = s.request("POST", CHAT, body, {"Authorization": "Bearer modest"})
        assert status == 400 and b"context_length_exceeded" in answer, answer  # read, prepared, and too long
    assert s.stop() == 0


def test_F91_unread_answers_are_charged(tight):
    body = json.dumps({"content": words(20000), "with_pieces": True}).encode()
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", tight.port))
        s.sendall(tight.post_bytes("/tokenize", body))
        tight.wait_until(lambda: tight.stats()["client_memory"]["unread"] > 100_000)
        assert used(tight) > 100_000
    tight.wait_until(lambda: used(tight) == 0)


def anonymous_bytes(server):
    with open(f"/proc/{server.process.pid}/smaps_rollup") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("Anonymous:")) << 10


@pytest.mark.skipif(SANITIZED, reason="a sanitizer's allocator keeps what is freed")
def test_F91_streams_that_nobody_read_give_the_heap_back(make_server):
    """Megabytes of small pieces lie unread behind stalled readers; when those are gone, most of it is the system's again."""
    s = make_server("--threads", "1", "--kv-tokens", "4096", "--ctx", "256", model=TINY)
    body = {"prompt": [5, 6, 7], "max_tokens": 240, "ignore_eos": True, "logprobs": 20, "n": 8}
    s.ok("/v1/completions", body | {"n": 1})
    idle = anonymous_bytes(s)
    with contextlib.ExitStack() as open_ones:
        for _ in range(30):
            c = open_ones.enter_context(socket.socket())
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            c.connect(("127.0.0.1", s.port))
            c.sendall(s.post_bytes("/v1/completions", json.dumps(body | {"stream": True}).encode()))
        s.wait_until(lambda: s.stats()["client_memory"]["unread"] > 4 << 20)
        s.wait_until(lambda: s.active() == 0)
        held = anonymous_bytes(s)
    assert held - idle > 10 << 20, (idle, held)  # or this measures nothing
    s.wait_until(lambda: used(s) == 0)
    s.wait_until(lambda: anonymous_bytes(s) - idle < (held - idle) // 2)


def test_F91_the_process_lives_within_its_budget_and_a_limit_on_its_data(make_server):
    """RLIMIT_DATA at what the idle server has, the budget and 64 MiB: whatever is asked of it, no allocation fails."""
    plain = ("--threads", "1", "--kv-tokens", "1024", "--ctx", "64", "--client-memory", "64M")
    s = make_server(*plain, model=TINY)
    s.ok(CHAT, SMALL)
    with open(f"/proc/{s.process.pid}/status") as f:
        idle = next(int(line.split()[1]) for line in f if line.startswith("VmData")) << 10
    s.stop()
    s = make_server(*plain, model=TINY, before=("prlimit", f"--data={idle + (128 << 20)}"))
    sizes = (10_000, 300_000, 2_000_000, 8_000_000, 20_000_000)
    for unit in ("red blue ", "a", "\u65e5"):
        for n in sizes:
            status, answer = s.post(
                CHAT, {"messages": [{"role": "user", "content": unit * (n // len(unit.encode()))}], "max_tokens": 1}
            )
            assert status in (200, 400, 413), answer  # the tiny model has one token for what it does not know
    for unit in (b"{},", b"[],", b'"",', b"1,"):
        status, _, answer = s.request("POST", CHAT, b'{"messages":[' + unit * 4_000_000 + b"1]}")
        assert status in (400, 413), answer
    s.ok(CHAT, SMALL)
    s.wait_until(lambda: used(s) == 0)
    assert s.stop() == 0


# ---- beside the io threads ----


def thread_cpu_s(server):
    """(of the io thread, which is the main one; of all)"""

    def of(path):
        with open(path) as f:
            fields = f.read().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / 100

    pid = server.process.pid
    return of(f"/proc/{pid}/task/{pid}/stat"), of(f"/proc/{pid}/stat")


@pytest.mark.parametrize(
    "path,body",
    [
        ("/tokenize", {"content": words(200_000)}),
        ("/apply-template", {"messages": [{"role": "user", "content": words(100_000)}] * 3}),
        ("/v1/cache/explain", {"prompt": words(200_000)}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": words(200_000)}]}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 30000}], "max_tokens": 1}),
        ("/v1/responses", {"input": [{"role": "user", "content": "a"}] * 20000, "max_output_tokens": 1}),
        ("/detokenize", {"tokens": [40, 41, 42] * 60_000}),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_big_work_leaves_the_io_thread(make_server, path, body):
    s = make_server("--threads", "1", "--kv-tokens", "4096", "--ctx", "64", model=TINY)
    data = json.dumps(body).encode()
    before = thread_cpu_s(s)
    while thread_cpu_s(s)[1] - before[1] < 0.8:
        assert s.request("POST", path, data)[0] in (200, 400)
    after = thread_cpu_s(s)
    io, all_threads = after[0] - before[0], after[1] - before[1]
    assert io < 0.4 * all_threads, (io, all_threads)


def test_answers_keep_the_order_of_their_requests(tight):
    big = tight.post_bytes("/tokenize", json.dumps({"content": words(30000)}).encode())
    small = tight.post_bytes("/tokenize", json.dumps({"content": "a"}).encode(), ["Connection: close"])
    out = tight.raw(big + small)
    first, second = out.index(b'"count":'), out.rindex(b'"count":')
    counts = [int(out[at + 8 :].split(b",", 1)[0]) for at in (first, second)]
    assert counts[0] > 1000 > counts[1], counts


def test_a_client_that_hangs_up_leaves_nothing(tight):
    body = tight.post_bytes("/tokenize", json.dumps({"content": words(60000)}).encode())
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", tight.port), timeout=20) as s:
            s.sendall(body)
    tight.wait_until(lambda: used(tight) == 0)
    assert tight.ok("/tokenize", {"content": "a"})


def test_stopping_while_big_requests_are_read(make_server):
    s = make_server("--threads", "1", "--kv-tokens", "4096", "--ctx", "64", "--drain", "1", model=TINY)
    body = s.post_bytes("/tokenize", json.dumps({"content": words(100_000)}).encode())
    with contextlib.ExitStack() as open_ones:
        for _ in range(8):
            c = open_ones.enter_context(socket.create_connection(("127.0.0.1", s.port), timeout=20))
            c.sendall(body)
        assert s.stop() == 0


# ---- small stacks ----


def test_F96_every_thread_gets_by_with_256_KiB_of_stack(make_server):
    """The limit is that of the main thread, and the C library's default for all others."""
    if SANITIZED:
        pytest.skip("a sanitizer's frames are several times as large")
    s = make_server("--threads", "2", "--kv-tokens", "8192", before=("prlimit", "--stack=262144"))
    for name, ((path, raw), status, _) in CASES.items():
        assert s.request("POST", path, raw)[0] == status, name
    deep = "[" * 100 + "]" * 100
    nested = {"type": "object", "properties": {}}
    for _ in range(55):
        nested = {"type": "object", "properties": {"a": nested}}
    for body in (
        {"messages": SMALL["messages"], "max_tokens": 1, "metadata": json.loads(deep)},
        {
            "messages": SMALL["messages"],
            "max_tokens": 1,
            "tools": [{"type": "function", "function": {"name": "f", "parameters": nested}}],
        },
        {"messages": [{"role": "user", "content": words(3000)}], "max_tokens": 8},
        {"messages": [{"role": "user", "content": "a" * 50_000}], "max_tokens": 1},
    ):
        assert s.post(CHAT, body)[0] in (200, 400)
    for unit in ("a", "\u65e5", "((((", "\\\\", " \n", "0"):
        s.ok("/tokenize", {"content": unit * (50_000 // len(unit))})
    s.ok("/v1/responses", {"input": "a", "max_output_tokens": 4})
    s.wait_idle()
    assert s.stop() == 0
