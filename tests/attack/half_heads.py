#!/usr/bin/env python3
"""n connections hold half a head each; those that the server ends are made anew, until the time is over."""

import contextlib
import random
import sys
import time

import attack

HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n"


def hold(server, n, seconds):
    """n connections, each with a part of a head; one in a hundred gets a byte more now and then."""
    rng, held, made, served = random.Random(1), [], 0, 0
    end = time.monotonic() + seconds
    while len(held) < n or time.monotonic() < end:
        if len(held) < n:
            held.append(attack.connect(server))
            held[-1].sendall(HEAD[: rng.randrange(1, len(HEAD) - 1)])
            held[-1].setblocking(False)
            made += 1
            continue
        for i in rng.sample(range(n), max(1, n // 100)):
            with contextlib.suppress(BlockingIOError):
                try:
                    ended = not held[i].recv(4096)
                except ConnectionError:
                    ended = True
                if ended:
                    held[i].close()
                    held[i] = attack.connect(server)
                    held[i].sendall(HEAD[: rng.randrange(1, len(HEAD) - 1)])
                    held[i].setblocking(False)
                    made += 1
        status, _, _ = server.request("POST", attack.TEXT, {"prompt": "a", "max_tokens": 1}, timeout=10)
        served += status == 200
    for c in held:
        c.close()
    return {"connections": made, "served_beside": served}


if __name__ == "__main__":
    sys.exit(attack.main("half_heads", hold, 4300, 60))
