#!/usr/bin/env python3
"""n clients ask and hang up, in every phase (head, body, queue, prefill, decode, between events, after the last) and in every way
(FIN, RST, half-close), as fast as they can."""

import contextlib
import json
import random
import socket
import struct
import sys
import threading
import time

import attack


def leave(s, how):
    if how == 1:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how == 2:
        with contextlib.suppress(OSError):
            s.shutdown(socket.SHUT_WR)
    s.close()


def client(server, seed, end, counts):
    rng = random.Random(seed)
    while time.monotonic() < end:
        body = {
            "prompt": "abcdefgh " * rng.randrange(1, 20),
            "max_tokens": rng.choice((1, 5, 60, 200)),
            "ignore_eos": True,
            "stream": rng.random() < 0.7,
            "n": rng.choice((1, 1, 1, 4)),
            "cache_prompt": rng.random() < 0.8,
        }
        raw = server.post_bytes(attack.TEXT, json.dumps(body).encode())
        phase = rng.randrange(6)
        with contextlib.suppress(OSError):
            s = attack.connect(server, timeout=2)
            if phase == 0:
                s.sendall(raw[: rng.randrange(1, len(raw))])
            else:
                s.sendall(raw)
            if phase == 2:
                time.sleep(rng.random() * 0.02)
            if phase == 3:
                s.recv(1)
            if phase == 4:
                for _ in range(rng.randrange(1, 6)):
                    s.recv(300)
            if phase == 5 and body["stream"]:
                seen = b""
                while b"[DONE]" not in seen and (part := s.recv(65536)):
                    seen = seen[-10:] + part
            leave(s, rng.randrange(3))
            counts[phase] += 1


def storm(server, n, seconds):
    """n threads of clients that leave."""
    end, counts = time.monotonic() + seconds, [0] * 6
    threads = [threading.Thread(target=client, args=(server, i, end, counts)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return {"left_in_phase": dict(zip(("head or body", "queued", "soon", "first byte", "decode", "end"), counts))}


if __name__ == "__main__":
    sys.exit(attack.main("cancel_storm", storm, 32, 60))
