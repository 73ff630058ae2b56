"""KV events, read as vLLM's subscribers read them: the index that follows them is what the server has."""

import hashlib
import os
import pickle
import socket
import struct
import subprocess
import time

import msgspec
import pytest
import zmq

from radish_server import ROOT, TINY, Server, free_port

PROMPT = "The quick brown fox jumps over the lazy dog, and %d other animals watch it. " * 20 % tuple(range(20))
P = 16
MANY = 1_000_000 if os.environ.get("RADISH_LONG") else 200_000
Hash = bytes | int


def definitions(lists):
    """The messages, as vLLM declares them, in both of its forms."""

    class Event(msgspec.Struct, array_like=lists, tag=True):
        pass

    class BlockStored(Event):
        block_hashes: list[Hash]
        parent_block_hash: Hash | None
        token_ids: list[int]
        block_size: int
        lora_id: int | None
        medium: str | None = None
        lora_name: str | None = None
        extra_keys: list[tuple | None] | None = None

    class BlockRemoved(Event):
        block_hashes: list[Hash]
        medium: str | None = None

    class AllBlocksCleared(Event):
        pass

    class KVEventBatch(msgspec.Struct, array_like=True):
        ts: float
        events: list[BlockStored | BlockRemoved | AllBlocksCleared]
        data_parallel_rank: int | None = None

    return msgspec.msgpack.Decoder(KVEventBatch)


def cbor(x):
    """Canonical, as far as hashes need it."""

    def head(kind, n):
        for more, size, form in ((24, 1, ">B"), (25, 2, ">H"), (26, 4, ">I")):
            if n < 24:
                return bytes([kind << 5 | n])
            if n < 1 << 8 * size:
                return bytes([kind << 5 | more]) + struct.pack(form, n)

    if x is None:
        return b"\xf6"
    if isinstance(x, int):
        return head(0, x)
    if isinstance(x, bytes):
        return head(2, len(x)) + x
    if isinstance(x, str):
        return head(3, len(x)) + x.encode()
    return head(4, len(x)) + b"".join(map(cbor, x))


def digest(x, hashes="bytes"):
    """As vLLM does it, vllm/utils/hashing.py: sha256_cbor, or sha256 of a pickle (of tuples)."""
    data = pickle.dumps(x, protocol=5) if hashes.startswith("sha256") else cbor(x)
    return hashlib.sha256(data).digest()


class Index:
    """What a router keeps: blocks by hash, each with its tokens and the block before it."""

    def __init__(self, port, replay_port, lists=True, topic=b"", page_tokens=P):
        self.page_tokens = page_tokens
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.SUBSCRIBE, topic)
        self.socket.connect(f"tcp://127.0.0.1:{port}")
        self.replay_port = replay_port
        self.decoder = definitions(lists)
        self.blocks, self.next, self.topic, self.n_events, self.n_gaps = {}, 0, topic, 0, 0

    def take(self, number, payload):
        assert number == self.next
        self.next += 1
        batch = self.decoder.decode(payload)
        assert abs(batch.ts - time.time()) < 600 and batch.data_parallel_rank == 0
        for e in batch.events:
            self.n_events += 1
            kind = type(e).__name__
            if kind == "AllBlocksCleared":
                self.blocks.clear()
            elif kind == "BlockRemoved":
                del self.blocks[e.block_hashes[0]]  # it was there
            else:
                assert (
                    e.block_size == len(e.token_ids) == self.page_tokens
                    and e.medium == "GPU"
                    and len(e.block_hashes) == 1
                )
                assert e.block_hashes[0] not in self.blocks
                self.blocks[e.block_hashes[0]] = e

    def catch_up(self):
        """All that was missed, from the replay socket: a DEALER, since many answers come to one question."""
        with self.context.socket(zmq.DEALER) as s:
            s.setsockopt(zmq.LINGER, 0)
            s.setsockopt(zmq.RCVHWM, 0)
            s.connect(f"tcp://127.0.0.1:{self.replay_port}")
            s.send_multipart([b"", self.next.to_bytes(8, "big")])
            n = 0
            while True:
                assert s.poll(20000)
                empty, number, payload = s.recv_multipart()
                assert empty == b""
                if number == b"\xff" * 8:
                    return n
                self.take(int.from_bytes(number, "big"), payload)
                n += 1

    def follow(self, seconds=1.0):
        """What is published, until nothing more comes."""
        n = 0
        while self.socket.poll(seconds * 1000):
            topic, number, payload = self.socket.recv_multipart()
            assert topic == self.topic
            number = int.from_bytes(number, "big")
            if number > self.next:
                self.n_gaps += 1
                self.catch_up()
            if number == self.next:
                self.take(number, payload)
            n += 1
        return n

    def check(self, hashes="bytes"):
        """Every block hangs on one that is there, and is called what vLLM would call it."""
        names = {}
        for h in self.blocks:
            path, at = [], h
            while at is not None:
                path.append(self.blocks[at])
                at = self.blocks[at].parent_block_hash
            before = digest("0", hashes)
            for e in reversed(path):
                extra = e.extra_keys[0]
                before = digest((before, tuple(e.token_ids), None if extra is None else tuple(extra)), hashes)
            names[h] = before
        for h, name in names.items():
            assert h == (int.from_bytes(name[-8:], "big") if hashes.endswith("numbers") else name)

    def close(self):
        self.socket.close(0)
        self.context.term()


@pytest.fixture()
def ports():
    return free_port(), free_port()


def start(ports, *flags, **more):
    return Server(
        "--kv-events",
        f"zmq://127.0.0.1:{ports[0]}",
        "--kv-events-replay",
        f"tcp://127.0.0.1:{ports[1]}",
        *flags,
        **more,
    )


def ask(server, prompt, **more):
    return server.ok("/v1/completions", {"prompt": prompt, "max_tokens": 4, "temperature": 0} | more)


def n_blocks(server, page_tokens=P):
    """Whole pages that the tree has: by its list of nodes, where every path counts the pages that end on it."""
    nodes = server.get("/v1/cache?limit=100000")[1]["nodes"]
    return sum((x["start"] + x["tokens"]) // page_tokens - x["start"] // page_tokens for x in nodes)


@pytest.mark.parametrize(
    "form, hashes", [("lists", "bytes"), ("maps", "numbers"), ("maps", "sha256"), ("lists", "sha256-numbers")]
)
def test_the_index_is_what_the_server_has(ports, form, hashes):
    server = start(ports, "--kv-events-form", form, "--kv-events-hash", hashes, "--kv-events-topic", "kv@me@it")
    index = Index(*ports, lists=form == "lists", topic=b"kv@me@it")
    try:
        ask(server, PROMPT)
        index.follow()
        index.catch_up()
        index.check(hashes)
        assert len(index.blocks) == n_blocks(server) > 20
        ask(server, PROMPT[:700] + "another end " * 20)  # shares the beginning
        ask(server, PROMPT, cache_salt="mine")  # shares nothing
        ask(server, PROMPT)
        index.follow()
        index.check(hashes)
        assert len(index.blocks) == n_blocks(server)
        tokens = server.ok("/tokenize", {"content": PROMPT})["tokens"]
        told = [e.token_ids for e in index.blocks.values() if e.parent_block_hash is None and e.extra_keys[0] is None]
        assert told == [tokens[:P]]
        assert sum(e.extra_keys[0] is not None for e in index.blocks.values()) == 1  # the salted text's first
        assert server.request("DELETE", "/v1/cache")[0] == 200
        index.follow()
        assert not index.blocks and n_blocks(server) == 0
        told = server.stats()["kv_events"]
        assert told["stored"] == told["removed"] > 0 and told["dropped"] == 0 and told["replays"] >= 1
    finally:
        index.close()
        assert server.stop() == 0


def test_eviction_is_told_and_a_late_subscriber_catches_up(ports):
    server = start(ports, "--kv-tokens", "2048", "--ctx", "1024")
    try:
        for i in range(24):
            ask(server, f"{i} " + PROMPT[: 300 + 37 * i])
        index = Index(*ports)
        assert index.catch_up() > 0  # it was not there: all of it comes again
        index.check()
        assert len(index.blocks) == n_blocks(server)
        told = server.stats()["kv_events"]
        assert told["removed"] > 0 and index.n_events == told["stored"] + told["removed"]
        index.close()
    finally:
        assert server.stop() == 0


def test_requests_for_a_replay_that_are_none_are_left(ports):
    server = start(ports)
    context = zmq.Context()
    try:
        ask(server, PROMPT)
        for parts in (
            [b""],
            [b"", b"1234567"],
            [b"", b"123456789"],
            [b"x", b"12345678"],
            [b"", b"", b"", b""],
            [b"", b"x" * 100000],
            [b"\0" * 300] * 300,
        ):
            with context.socket(zmq.DEALER) as s:
                s.setsockopt(zmq.LINGER, 1000)
                s.connect(f"tcp://127.0.0.1:{ports[1]}")
                s.send_multipart(parts)
                assert not s.poll(100)
        index = Index(*ports)
        assert index.catch_up() > 0
        index.close()
    finally:
        context.term()
        assert server.stop() == 0


def test_a_subscriber_that_does_not_read_holds_up_nobody(ports):
    server = start(ports)
    index = Index(*ports)
    try:
        ask(server, PROMPT)
        for i in range(20):
            ask(server, f"{i} " + PROMPT[:400])
        assert server.get("/health")[0] == 200
    finally:
        index.close()
        assert server.stop() == 0


def test_what_cannot_be_bound_is_said():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for flags, said in (
            (["--kv-events", "http://x"], "tcp://ADDRESS:PORT"),
            (["--kv-events", f"tcp://127.0.0.1:{taken.getsockname()[1]}"], "Address already in use"),
            (["--kv-events", "tcp://127.0.0.1:*", "--kv-events-form", "xml"], "lists"),
        ):
            s = Server(*flags, wait=False, log=subprocess.PIPE)
            try:
                text = s.process.communicate(timeout=60)[1].decode()
            finally:
                s.process.kill()
            assert s.process.returncode in (1, 2) and said in text


def fill(server, first, n):
    """n prompts of as many tokens as the context has, each of its own."""
    for k in range(first, first + n):
        ids = [5 + (k >> 6 * i) % 64 for i in range(4)] + [5 + (k * 7 + i * 31 + i * i) % 80 for i in range(251)]
        server.ok("/v1/completions", {"prompt": ids, "max_tokens": 1, "temperature": 0})


TINY_PAGES = ("--page-tokens", "1", "--threads", "1")


def test_very_many_events_and_gaps(ports):
    """A fifth of a million; with RADISH_LONG=1 a million. One who reads now and then only: what the socket dropped comes from the replay, and the index is the server's list."""
    server = start(ports, *TINY_PAGES, "--kv-tokens", "4096", model=TINY)
    index = Index(*ports, page_tokens=1)
    try:
        told = {"stored": 0, "removed": 0}
        for turn in range(100):
            fill(server, 40 * turn, 40)
            if turn % 7:
                index.follow(0.01)
            told = server.stats()["kv_events"]
            if told["stored"] + told["removed"] > MANY:
                break
        index.follow()
        index.catch_up()
        told = server.stats()["kv_events"]
        assert index.n_events == told["stored"] + told["removed"] > MANY and told["dropped"] == 0
        assert len(index.blocks) == n_blocks(server, 1) > 3000
        index.check()
    finally:
        index.close()
        assert server.stop() == 0


def test_a_subscriber_that_missed_messages_finds_the_gap(ports):
    server = start(ports)
    index = Index(*ports)
    try:
        ask(server, PROMPT)
        index.follow()
        index.catch_up()
        index.socket.disconnect(f"tcp://127.0.0.1:{ports[0]}")
        for i in range(3):
            ask(server, f"{i} " + PROMPT[:400])
        time.sleep(0.2)  # what is published meanwhile is published to nobody
        index.socket.connect(f"tcp://127.0.0.1:{ports[0]}")
        time.sleep(0.5)
        ask(server, "behind it " + PROMPT[:400])
        index.follow()
        assert index.n_gaps == 1 and len(index.blocks) == n_blocks(server)
        index.check()
    finally:
        index.close()
        assert server.stop() == 0


def test_more_than_the_queue_holds_is_dropped_and_cleared(ports, tmp_path):
    """A hundred thousand pages are free at once while the thread that publishes stands still: more events than there is room for. All is cleared, and told anew."""
    library, stall = tmp_path / "stall_send.so", tmp_path / "stall"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", library, ROOT / "tests/server/stall_send.c", "-ldl"],
        check=True,
    )
    env = {"LD_PRELOAD": str(library), "STALL_FILE": str(stall)}
    server = start(ports, *TINY_PAGES, "--kv-tokens", "131072", model=TINY, env=env)
    index = Index(*ports, page_tokens=1)
    try:
        for turn in range(12):
            fill(server, 40 * turn, 40)
            index.follow(0.01)
        index.follow()
        index.catch_up()
        assert len(index.blocks) == n_blocks(server, 1) > 100_000
        stall.touch()
        assert server.request("DELETE", "/v1/cache")[0] == 200
        stall.unlink()
        index.follow()
        index.catch_up()
        told = server.stats()["kv_events"]
        assert told["dropped"] > 0 and told["cleared"] >= 1
        assert not index.blocks and n_blocks(server, 1) == 0
        fill(server, 0, 3)
        fill(server, 0, 3)
        index.follow()
        assert len(index.blocks) == n_blocks(server, 1) > 500
        index.check()
    finally:
        index.close()
        assert server.stop() == 0
