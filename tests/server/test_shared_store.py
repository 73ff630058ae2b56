"""Servers on one Redis: what one computed another reads, byte for byte; and whatever goes wrong there harms nobody."""

import contextlib
import os
import random
import shutil
import socket
import subprocess
import threading
import time

import pytest

from radish_server import ROOT, SANITIZED, TINY, Server, free_port
from shared_rig import Redis, Refused

TEXT = "The quick brown fox jumps over the lazy dog, and %d other animals watch it. "
PROMPT = TEXT * 24 % tuple(range(24))
SHORT = PROMPT[:200]  # for the tiny model; only a fresh server asks the store for what it computes so quickly
LONG = bool(os.environ.get("RADISH_LONG"))


def body(prompt=PROMPT, n=16, **more):
    return {"prompt": prompt, "max_tokens": n, "temperature": 0, "seed": 1, "logprobs": 3} | more


@pytest.fixture()
def redis(tmp_path):
    r = Redis(tmp_path / "redis")
    yield r
    r.kill()


@contextlib.contextmanager
def serving(folder, url, *flags, **more):
    server = Server("--cache-dir", str(folder), "--cache-store", url, *flags, **more)
    server.is_tiny = more.get("model") == TINY
    try:
        yield server
    finally:
        if server.process.poll() is None:
            assert server.stop() == 0


class Alone(Server):
    """With a disk, without a store."""

    def __init__(self, folder):
        super().__init__("--cache-dir", str(folder))
        self.is_tiny = False

    def close(self):
        assert self.stop() == 0


def url_of(redis):
    return f"redis://127.0.0.1:{redis.port}"


def ask(server, prompt=None, **more):
    prompt = prompt or (SHORT if server.is_tiny else PROMPT)
    answer = server.ok("/v1/completions", body(prompt, **more))
    return answer["choices"][0], answer["timings"]


def ask_new(server):
    """Some pages that nobody has."""
    return ask(server, prompt=str(time.time()) + PROMPT[:400], n=2)


def shared(server):
    return server.stats()["shared_store"]


def until(what, seconds=60):
    for _ in range(seconds * 50):
        if got := what():
            return got
        time.sleep(0.02)
    raise AssertionError(what())


def stored(server, n_pages):
    """Waits until so many pages are with the store, written or known."""
    until(lambda: (s := shared(server))["pages_written"] + s["pages_known"] >= n_pages)


def test_a_conversation_goes_on_at_another_server(tmp_path, redis):
    with serving(tmp_path / "a", url_of(redis)) as a, serving(tmp_path / "b", url_of(redis)) as b:
        first, timings = ask(a)
        n_pages = timings["prompt_n"] // 16
        assert timings["cache_n"] == 0 and n_pages > 24
        stored(a, n_pages)
        again, timings = ask(b)
        assert again == first  # text and log probabilities, every digit
        assert timings["cache_shared_n"] >= 0.99 * (n_pages * 16)
        more = PROMPT + first["text"] + " And then?"
        at_b, b_timings = ask(b, prompt=more)
        at_a, _ = ask(a, prompt=more)
        assert at_a == at_b and b_timings["cache_n"] >= n_pages * 16
        s = shared(b)
        assert s["prompt_tokens"] >= n_pages * 16 and s["pages_read"] == s["pages_found"] == n_pages
        assert s["refused"] == s["read_errors"] == s["write_errors"] == 0 and s["reads"] == s["writes"] == 1
        stored(b, n_pages)  # what it read it wrote to its disk and offered: known there already
        assert shared(b)["pages_known"] >= n_pages
        assert all(0 < redis.say("TTL", k) <= 86400 for k in redis.pages())


def test_who_has_it_on_disk_does_not_ask_and_who_has_nothing_computes(tmp_path, redis):
    with serving(tmp_path / "a", url_of(redis)) as a:
        first, timings = ask(a)
        stored(a, timings["prompt_n"] // 16)
    with serving(tmp_path / "a", url_of(redis)) as a:
        again, timings = ask(a)
        assert again == first and timings["cache_disk_n"] > 0 and "cache_shared_n" not in timings
        assert shared(a)["lookups"] == 0
        _, timings = ask(a, prompt="x" + PROMPT)
        assert timings["cache_n"] == 0 and shared(a)["lookups"] == 1 and shared(a)["pages_found"] == 0


def test_what_the_disk_had_before_is_offered_when_it_is_used(tmp_path, redis):
    """Computed without a store, or lost by it since: whoever asks for it again makes others find it."""
    with contextlib.closing(Alone(tmp_path / "a")) as a:
        first, timings = ask(a)
    n_pages = timings["prompt_n"] // 16
    with serving(tmp_path / "a", url_of(redis)) as a:
        again, timings = ask(a)
        assert again == first and timings["cache_disk_n"] > 0
        stored(a, n_pages)
        assert shared(a)["pages_written"] == n_pages
        keys = set(redis.pages())
        assert len(keys) == n_pages
        ask(a)
        redis.kill()  # it forgets everything
        redis.start()
        ask(a)  # notices nothing, or that it was gone
        until(lambda: ask_new(a) and shared(a)["reads"] == shared(a)["writes"] == 1)
        until(lambda: ask(a) and keys <= set(redis.pages()))
    with serving(tmp_path / "b", url_of(redis)) as b:
        again, timings = ask(b)
        assert again == first and timings["cache_shared_n"] >= 0.99 * (n_pages * 16)


def test_what_is_used_lives_longer(tmp_path, redis):
    with serving(tmp_path / "a", url_of(redis)) as a:
        first, timings = ask(a)
        n_pages = timings["prompt_n"] // 16
        stored(a, n_pages)
    for key in redis.pages():
        redis.say("EXPIRE", key, 1000)
    with serving(tmp_path / "a", url_of(redis)) as a:
        assert ask(a)[0] == first
        until(lambda: sum(redis.say("TTL", key) > 80000 for key in redis.pages()) >= n_pages)
        assert shared(a)["pages_written"] == 0


def test_what_waits_when_it_is_cleared_is_never_written(tmp_path, redis):
    """Neither from the queue nor from before it, nor what was taken out while it waited."""
    redis.pause()
    with serving(tmp_path / "a", url_of(redis), "--cache-store-rate", "100k", model=TINY) as a:
        ask(a)
        until(lambda: shared(a)["queue_bytes"] > 0 or shared(a)["pages_dropped"] > 0)
        assert a.request("DELETE", "/v1/cache")[0] == 200
        redis.go_on()
        until(lambda: redis.say("GET", "radish:generation"))
        assert shared(a)["queue_bytes"] == 0 and not redis.pages()
        one, timings = ask(a)
        assert timings["cache_n"] == 0
        stored(a, timings["prompt_n"] // 16)


@pytest.mark.parametrize(
    "says", [b"MOVED 3999 127.0.0.1:6381", b"ASK 3999 127.0.0.1:6381", b"CLUSTERDOWN Hash slot not served"]
)
def test_one_of_a_cluster_is_called_that(tmp_path, says):
    store = Hostile(b"-" + says + b"\r\n", forever=True)
    log = tmp_path / "log"
    try:
        with open(log, "wb") as f, serving(tmp_path / "a", f"redis://127.0.0.1:{store.port}", model=TINY, log=f) as s:
            one, _ = ask(s)
            two, _ = ask(s)
            assert one["text"] == two["text"]
            want = {"reads": "a cluster", "writes": "a cluster"}
            until(lambda: ask(s, prompt=str(time.time()) + SHORT) and s.get("/health")[1]["shared_store"] == want)
        text = log.read_text()
        assert text.count("one of a cluster's servers") == 2 and says.decode().split()[0] in text
    finally:
        store.close()


def test_a_key_of_another_kind_is_removed(tmp_path, redis):
    """Somebody's list where a page should be."""
    with serving(tmp_path / "a", url_of(redis), model=TINY) as a:
        first, timings = ask(a)
        stored(a, timings["prompt_n"] // 16)
    for key in redis.pages():
        redis.say("DEL", key)
        redis.say("RPUSH", key, "x")
    with serving(tmp_path / "b", url_of(redis), model=TINY) as b:
        assert ask(b)[0] == first
        assert shared(b)["refused"] == 1 and shared(b)["reads"] == 1


def test_a_failover_to_a_replica_that_only_reads(tmp_path, redis):
    """Reading goes on, writing rests and says so; promoted, it takes what is new again."""
    with serving(tmp_path / "a", url_of(redis)) as a, serving(tmp_path / "b", url_of(redis)) as b:
        first, timings = ask(a)
        stored(a, timings["prompt_n"] // 16)
        redis.say("CONFIG", "SET", "replica-serve-stale-data", "yes")
        redis.say("REPLICAOF", "127.0.0.1", free_port())  # of a machine that is gone
        again, timings = ask(b)
        assert again == first and timings["cache_shared_n"] > 0
        ask(a, prompt="new " + PROMPT)
        until(lambda: a.get("/health")[1]["shared_store"] == {"reads": "ok", "writes": "read-only"})
        redis.say("REPLICAOF", "NO", "ONE")
        until(lambda: ask_new(a) and shared(a)["writes"] == 1)


def test_a_password_that_changes_is_said(tmp_path, redis):
    """What is connected stays so; a new connection needs the new one. Requests are answered all the time."""
    with serving(tmp_path / "a", url_of(redis)) as a:
        first, timings = ask(a)
        stored(a, timings["prompt_n"] // 16)
        redis.say("CONFIG", "SET", "requirepass", "new")
        redis.flags += ("--requirepass", "new")
        redis.kill()
        redis.start()
        until(
            lambda: (
                ask_new(a)
                and a.get("/health")[1]["shared_store"] == {"reads": "wrong password", "writes": "wrong password"}
            )
        )
        assert ask(a)[0] == first


def test_a_second_late_each_time(tmp_path, redis):
    """A store behind a slow line: a prompt waits 100 ms for it and no longer, and nobody else does."""
    port = free_port()
    threading.Thread(target=pass_on, args=(port, redis.port, bytearray(), 1.0), daemon=True).start()
    until(lambda: can_connect(port))
    with serving(tmp_path / "a", f"redis://127.0.0.1:{port}") as a:
        first, timings = ask(a)
        begin = time.monotonic()
        for i in range(4):
            ask(a, prompt=f"{i} " + PROMPT[:300], n=2)
        assert SANITIZED or time.monotonic() - begin < 30
        assert ask(a)[0] == first and shared(a)["lookups_late"] + shared(a)["read_errors"] >= 1


def test_another_kv_type_and_back(tmp_path, redis):
    """A server begun anew with another --kv-type neither finds nor harms what it had."""
    with serving(tmp_path / "a", url_of(redis), "--cache-store-secret", "s", model=TINY) as a:
        first, timings = ask(a)
        n_pages = timings["prompt_n"] // 16
        stored(a, n_pages)
    with serving(tmp_path / "a", url_of(redis), "--cache-store-secret", "s", "--kv-type", "f32", model=TINY) as a:
        _, timings = ask(a)
        assert timings["cache_n"] == 0
        stored(a, n_pages)
    with serving(tmp_path / "b", url_of(redis), "--cache-store-secret", "s", model=TINY) as b:
        again, timings = ask(b)
        assert again == first and timings["cache_shared_n"] > 0
    assert len(redis.pages()) >= 2 * n_pages


def test_pages_that_expire_while_they_are_read(tmp_path, redis):
    """They were there when they were looked up; those before the gap are used, and the answer is the same."""
    with serving(tmp_path / "a", url_of(redis), model=TINY) as a:
        first, timings = ask(a)
        stored(a, timings["prompt_n"] // 16)
    values = {k: redis.say("GET", k) for k in redis.pages()}
    for i in range(20):
        for n, (key, value) in enumerate(values.items()):
            redis.say("SET", key, value, "PX", 1 + (i * 7 + n * 13) % 40)
        with serving(tmp_path / f"b{i}", url_of(redis), model=TINY) as b:
            for key, value in values.items():
                redis.say("SET", key, value, "PX", 1 + i)
            assert ask(b)[0] == first
            assert shared(b)["refused"] == 0


def test_prefixes_secrets_salts_builds_and_types_keep_apart(tmp_path, redis):
    def found(folder, *flags, **more):
        with serving(tmp_path / folder, url_of(redis), *flags, model=TINY) as s:
            return ask(s, **more)[1].get("cache_shared_n", 0)

    with serving(tmp_path / "a", url_of(redis), "--cache-store-secret", "s3cret", model=TINY) as a:
        _, timings = ask(a)
        ask(a, cache_salt="mine")
        stored(a, 2 * (timings["prompt_n"] // 16))
    assert found("b", "--cache-store-secret", "s3cret") > 0
    assert found("c", "--cache-store-secret", "s3cret", cache_salt="mine") > 0  # known by the secret, on any machine
    assert found("d", "--cache-store-secret", "s3cret", cache_salt="yours") == 0
    assert found("e", "--cache-store-secret", "other") == 0
    assert found("f") == 0
    assert found("g", "--cache-store-secret", "s3cret", "--cache-store-prefix", "other") == 0
    assert found("h", "--cache-store-secret", "s3cret", "--kv-type", "f32") == 0


def test_clearing_clears_it_for_all(tmp_path, redis):
    with serving(tmp_path / "a", url_of(redis)) as a, serving(tmp_path / "b", url_of(redis)) as b:
        first, timings = ask(a)
        stored(a, timings["prompt_n"] // 16)
        status, _, _ = a.request("DELETE", "/v1/cache")
        assert status == 200
        until(lambda: redis.say("GET", "radish:generation"))
        again, timings = ask(b)
        assert again == first and timings["cache_n"] == 0
        stored(b, timings["prompt_n"] // 16)  # under the new names
        again, timings = ask(a)
        assert again == first and timings["cache_shared_n"] > 0


def test_damaged_pages_are_refused_and_replaced(tmp_path, redis):
    rng = random.Random(5)
    with serving(tmp_path / "a", url_of(redis), model=TINY) as a:
        first, timings = ask(a)
        n_pages = timings["prompt_n"] // 16
        stored(a, n_pages)
    for i in range(100 if LONG else 12):
        for key in redis.pages():
            value = bytearray(redis.say("GET", key))
            value[rng.randrange(len(value))] ^= 1 << rng.randrange(8)
            if rng.random() < 0.2:
                value = value[: rng.randrange(1, len(value) + 1)]
            redis.say("SET", key, bytes(value))
        with serving(tmp_path / f"b{i}", url_of(redis), model=TINY) as b:
            again, timings = ask(b)
            assert again == first and "cache_shared_n" not in timings
            assert shared(b)["refused"] == 1 and shared(b)["pages_read"] == 0
            stored(b, 1)
    other = redis.pages()
    for key in other:  # each is another one's value, whole and well sealed
        redis.say("RENAME", key, key + b"x")
    for key, wrong in zip(other, other[1:] + other[:1]):
        redis.say("RENAME", wrong + b"x", key)
    with serving(tmp_path / "c", url_of(redis), model=TINY) as c:
        again, timings = ask(c)
        assert again == first and "cache_shared_n" not in timings


def test_flushed_evicted_and_full_it_is_done_without(tmp_path, redis):
    with serving(tmp_path / "a", url_of(redis)) as a, serving(tmp_path / "b", url_of(redis)) as b:
        first, timings = ask(a)
        n_pages = timings["prompt_n"] // 16
        stored(a, n_pages)
        for key in sorted(redis.pages())[::3]:
            redis.say("DEL", key)
        again, timings = ask(b)  # what stands before the first gap, at most
        assert again == first
        redis.say("FLUSHALL")
        assert ask(b, prompt="y" + PROMPT)[1]["cache_n"] == 0
        redis.say("CONFIG", "SET", "maxmemory", "1")
        _, timings = ask(a, prompt="z" + PROMPT)
        until(lambda: shared(a)["write_errors"] > 0)
        assert shared(a)["writes"] == 0 and shared(a)["reads"] == 1
        assert ask(b, prompt="z" + PROMPT)[1]["cache_n"] == 0
        redis.say("CONFIG", "SET", "maxmemory", "0")
        until(lambda: ask_new(a) and shared(a)["writes"] == 1)


def test_a_password_is_used_and_never_shown(tmp_path):
    redis = Redis(tmp_path / "redis", "--requirepass", "pa55/w@rd")
    log = tmp_path / "log"
    try:
        right = f"redis://:pa55%2Fw%40rd@127.0.0.1:{redis.port}"
        wrong = f"redis://:wr0ng@127.0.0.1:{redis.port}"
        for i, (url, works) in enumerate(((right, 1), (wrong, 0))):
            with open(log, "ab") as f:  # from the environment: not in the command line
                s = Server(
                    "--cache-dir",
                    str(tmp_path / f"kv{i}"),
                    "--log-level",
                    "debug",
                    log=f,
                    model=TINY,
                    env={"RADISH_CACHE_STORE": url, "RADISH_CACHE_STORE_SECRET": "s3cret"},
                )
            s.is_tiny = True
            _, timings = ask(s)
            if works:
                stored(s, timings["prompt_n"] // 16)
            until(lambda: shared(s)["writes"] == works)
            assert shared(s)["reads"] == works
            seen = b"".join(s.request("GET", p)[2] for p in ("/stats", "/metrics", "/props", "/health", "/v1/settings"))
            assert s.stop() == 0
            assert b"pa55" not in seen and b"wr0ng" not in seen and b"s3cret" not in seen
        text = log.read_bytes()
        assert b"pa55" not in text and b"wr0ng" not in text and b"s3cret" not in text
        assert text.count(b"cannot be written to") == text.count(b"cannot be read from") == 1
        assert b"WRONGPASS" in text
    finally:
        redis.kill()
    run = subprocess.run(
        [
            s.process.args[0],
            "serve",
            s.process.args[2],
            "--cache-dir",
            tmp_path / "x",
            "--cache-store",
            "redis://pa55" + "@:x",
            "--print-config",
        ],
        capture_output=True,
        check=False,
    )
    assert b"pa55" not in run.stdout + run.stderr


def test_health_says_what_is_wrong_in_a_word(tmp_path):
    redis = Redis(tmp_path / "redis", "--requirepass", "pass")

    def says(folder, url, reads, writes):
        want = {"status": "ok", "shared_store": {"reads": reads, "writes": writes}}
        with serving(tmp_path / folder, url, model=TINY) as s:

            def asked():  # of a fresh server the first prompts are looked up, and what it computes is written
                ask(s, prompt=str(time.time()) + SHORT)
                return s.get("/health")[1] == want

            until(asked)

    try:
        right = f"redis://:pass@127.0.0.1:{redis.port}"
        says("a", f"redis://:wrong@127.0.0.1:{redis.port}", "wrong password", "wrong password")
        says("b", f"redis://127.0.0.1:{redis.port}", "wrong password", "wrong password")
        says("c", right, "ok", "ok")
        redis.kill()
        says("d", right, "down", "down")
        redis.flags += ("--maxmemory", "1")
        redis.start()
        says("e", right, "ok", "full")
    finally:
        redis.kill()
    hostile = Hostile(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    try:
        says("f", f"redis://127.0.0.1:{hostile.port}", "no store", "no store")
    finally:
        hostile.close()
    s = Server(model=TINY)
    assert s.get("/health")[1] == {"status": "ok"}
    assert s.stop() == 0


def test_through_a_socket(tmp_path):
    redis = Redis(tmp_path / "redis", "--unixsocket", str(tmp_path / "s"))
    try:
        with serving(tmp_path / "a", f"unix://{tmp_path}/s?db=3") as a:
            first, timings = ask(a)
            stored(a, timings["prompt_n"] // 16)
        assert not redis.pages()  # it is in another database
        with serving(tmp_path / "b", f"unix://{tmp_path}/s?db=3") as b:
            again, timings = ask(b)
            assert again == first and timings["cache_shared_n"] > 0
    finally:
        redis.kill()


class Hostile:
    """Answers every connection with the same bytes, for ever or once."""

    def __init__(self, data, forever=False, drip=False):
        self.data, self.forever, self.drip = data, forever, drip
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        with contextlib.suppress(OSError):
            while True:
                conn, _ = self.listener.accept()
                threading.Thread(target=self.serve, args=(conn,), daemon=True).start()

    def serve(self, conn):
        with contextlib.suppress(OSError), conn:
            conn.recv(65536)
            for byte in self.data if self.drip else ():
                conn.sendall(bytes([byte]))
                time.sleep(0.05)
            while not self.drip:
                conn.sendall(self.data)
                if not self.forever:
                    break
            conn.settimeout(30)
            while conn.recv(65536):
                pass

    def close(self):
        self.listener.close()


@pytest.mark.parametrize(
    "data, more",
    [
        (b"*1000000000\r\n", {}),
        (b"*2147483647\r\n$1\r\n", {}),
        (b"$536870912\r\n" + b"x" * 4096, {"forever": True}),
        (b"$-7\r\n", {}),
        (b":99999999999999999999\r\n", {}),
        (b"+" + b"x" * 65536, {"forever": True}),
        (b"$5\r\nhello\r\n:1\r\n", {"forever": True}),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", {}),
        (b"$-1\r\n" + b":1\r\n" * 500, {"drip": True}),
        (b"", {}),
    ],
)
def test_a_hostile_store_harms_nobody(tmp_path, data, more):
    store = Hostile(data, **more)
    try:
        with serving(tmp_path / "a", f"redis://127.0.0.1:{store.port}", model=TINY) as s:
            one, timings = ask(s)
            assert timings["cache_n"] == 0
            two, _ = ask(s)
            assert one["text"] == two["text"]
            until(lambda: shared(s)["write_errors"] > 0 or shared(s)["read_errors"] > 0)
            assert s.stats()["memory"]["peak_bytes"] < 6 << 30
    finally:
        store.close()


def test_killed_stopped_flushed_and_started_again_under_load(tmp_path, redis):
    """No answer is wrong, no request is lost, and what streams meanwhile is not held up."""
    rng = random.Random(11)
    prompts = [f"{i} " + PROMPT[: 400 + 600 * i] for i in range(6)]
    alone = Server()
    alone.is_tiny = False
    right = [ask(alone, prompt=p, n=4)[0]["text"] for p in prompts]
    alone.stop()
    over = threading.Event()
    wrong, n_asked = [], 0

    def load(server, seed):
        nonlocal n_asked
        r = random.Random(seed)
        while not over.is_set():
            i = r.randrange(len(prompts))
            if r.random() < 0.1:
                server.request("DELETE", "/v1/cache")
            status, answer = server.post("/v1/completions", body(prompts[i], 4))
            n_asked += 1
            if status != 200 or answer["choices"][0]["text"] != right[i]:
                wrong.append((status, answer, i))

    with serving(tmp_path / "a", url_of(redis)) as a, serving(tmp_path / "b", url_of(redis)) as b:
        threads = [threading.Thread(target=load, args=(s, k), daemon=True) for k, s in enumerate((a, b, a, b))]
        for t in threads:
            t.start()
        for _ in range(2000 if LONG else 40):
            what = rng.randrange(5)
            if what == 0:
                redis.kill()
                time.sleep(rng.random() * 0.2)
                redis.start()
            elif what == 1:
                redis.pause()
                time.sleep(rng.random() * 0.3)
                redis.go_on()
            elif what == 2:
                redis.say("FLUSHALL")
            elif what == 3:
                for key in redis.pages()[::5]:
                    value = bytearray(redis.say("GET", key) or b"x")
                    value[rng.randrange(len(value))] ^= 1 << rng.randrange(8)
                    with contextlib.suppress(Refused):  # it is full
                        redis.say("SET", key, bytes(value))
            else:
                redis.say("CONFIG", "SET", "maxmemory", rng.choice(("1mb", "20mb", "0")))
                redis.say("CONFIG", "SET", "maxmemory-policy", rng.choice(("noeviction", "allkeys-lru")))
            time.sleep(rng.random() * 0.2)
        end = time.monotonic() + 120  # a slow machine has answered few by now
        while n_asked <= 20 and time.monotonic() < end:
            time.sleep(0.1)
        over.set()
        for t in threads:
            t.join(600)
        assert not wrong and n_asked > 20
        assert shared(a)["pages_written"] + shared(b)["pages_written"] > 0


@pytest.mark.skipif(SANITIZED, reason="a sanitizer's library has to come first")
def test_the_engine_never_waits_for_who_speaks_with_the_store(tmp_path, redis):
    """Calls to the store hang, and with them whatever their threads hold: requests begin, stream and end all the same."""
    library, log, hold = tmp_path / "stall_peer.so", tmp_path / "calls", tmp_path / "hold"
    source = ROOT / "tests/server/stall_peer.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", library, source, "-ldl"], check=True)
    env = {"LD_PRELOAD": str(library), "PEER_PORT": str(redis.port), "PEER_LOG": str(log), "PEER_HOLD": str(hold)}
    with serving(tmp_path / "a", url_of(redis), env=env) as a:
        first, timings = ask(a)
        stored(a, timings["prompt_n"] // 16)
        for k in range(4 if LONG else 2):  # each time the calls are caught wherever they are
            hold.touch()
            with contextlib.ExitStack() as opened:
                for i in range(3):  # these look up what the store may have
                    opened.enter_context(
                        contextlib.closing(a.open_request("/v1/completions", body(f"{k} {i} " + PROMPT, 4)))
                    )
                chunks = a.stream("/v1/completions", body(f"{k} told " + SHORT, 64, ignore_eos=True))
                assert sum(bool(c["choices"]) for c in chunks) >= 64
                again, timings = ask(a)
                assert again == first and timings["cache_n"] > 0
                a.wait_idle(300)
                assert a.get("/health")[0] == 200 and shared(a)["queue_bytes"] > 0
            hold.unlink()
            until(lambda: shared(a)["queue_bytes"] == 0 or shared(a)["writes"] == 0)
    seen = log.read_text().split("\n")
    assert {line.split(" ")[0] for line in seen if line} == {"store-writer", "shared-loader"}
    assert {line.split(" ")[1] for line in seen if line} == {"connect", "poll", "read", "write"}


def test_a_stopped_store_holds_up_nobody(tmp_path, redis):
    with serving(tmp_path / "a", url_of(redis)) as a:
        ask(a)
        redis.pause()
        begin = time.monotonic()
        for i in range(5):
            ask(a, prompt=f"{i} short " + PROMPT[:300], n=2)
        took = time.monotonic() - begin
        redis.go_on()
        s = shared(a)
        # one waited for an answer, and gave up; the others did not ask any more
        assert s["lookups_late"] + s["read_errors"] >= 1 and s["lookups_late"] <= 2
        assert SANITIZED or took < 60


def test_through_tls(tmp_path, redis):
    """As docs/shared-store.md has it: stunnel beside the server and before the store, and nothing in the clear between them."""
    program = shutil.which("stunnel4") or shutil.which("stunnel")
    assert program, "stunnel4 is missing: tools/install-needs --tests"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
        + ["-subj", "/CN=store.example", "-addext", "subjectAltName=DNS:store.example"]
        + ["-keyout", tmp_path / "key", "-out", tmp_path / "crt"],
        check=True,
        capture_output=True,
    )
    docs = (ROOT / "docs/shared-store.md").read_text().split("## TLS")[1]
    near = "\n".join(line[4:] for line in docs.splitlines() if line.startswith("    "))
    near_port, tls_port, watch_port = free_port(), free_port(), free_port()
    for old, new in (
        ("127.0.0.1:6380", f"127.0.0.1:{near_port}"),
        ("connect = store.example:6379", f"connect = 127.0.0.1:{watch_port}"),
        ("/etc/ssl/certs/ca-certificates.crt", str(tmp_path / "crt")),
    ):
        assert old in near
        near = near.replace(old, new)
    far = f"[store]\naccept = 127.0.0.1:{tls_port}\nconnect = 127.0.0.1:{redis.port}\n"
    far += f"cert = {tmp_path / 'crt'}\nkey = {tmp_path / 'key'}\n"
    running, seen = [], bytearray()
    try:
        for name, text in (("near", near), ("far", far)):
            (tmp_path / name).write_text(f"foreground = yes\npid =\n{text}")
            running.append(subprocess.Popen([program, tmp_path / name], stderr=subprocess.DEVNULL))
        threading.Thread(target=pass_on, args=(watch_port, tls_port, seen), daemon=True).start()
        for port in (near_port, tls_port, watch_port):
            until(lambda port=port: can_connect(port))
        url = f"redis://127.0.0.1:{near_port}"
        with serving(tmp_path / "a", url, model=TINY) as a:
            first, timings = ask(a)
            stored(a, timings["prompt_n"] // 16)
        with serving(tmp_path / "b", url, model=TINY) as b:
            again, timings = ask(b)
            assert again == first and timings["cache_shared_n"] > 0
        assert len(seen) > 1000 and b"EVALSHA" not in seen and b"radish:" not in seen
    finally:
        for p in running:
            p.kill()
            p.wait(20)


def can_connect(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


def pass_on(port, to, seen, late_s=0.0):
    """Whoever comes to port speaks with `to`, so much later; what passes is kept."""

    def copy(a, b):
        with contextlib.suppress(OSError):
            while data := a.recv(65536):
                seen.extend(data)
                time.sleep(late_s)
                b.sendall(data)
        for s in (a, b):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            a = listener.accept()[0]
            try:
                b = socket.create_connection(("127.0.0.1", to))
            except OSError:  # it does not listen yet
                a.close()
                continue
            for one, other in ((a, b), (b, a)):
                threading.Thread(target=copy, args=(one, other), daemon=True).start()


def test_what_is_wrong_with_it_is_said_at_once(tmp_path):
    def said(*flags):
        s = Server(*flags, wait=False, log=subprocess.PIPE)
        text = s.process.communicate(timeout=60)[1].decode()
        assert s.process.returncode == 1, text
        return text

    assert "wanted redis://" in said("--cache-dir", str(tmp_path / "a"), "--cache-store", "http://store")
    assert "behind the disk cache" in said("--cache-store", "redis://store", "--no-disk-cache")
    assert "1 to 64 characters" in said(
        "--cache-dir", str(tmp_path / "a"), "--cache-store", "redis://store", "--cache-store-prefix", "x" * 65
    )
