#!/usr/bin/env python3
"""n clients send requests as fast as they can, without waiting for answers, and read none; those that are cut come back."""

import contextlib
import sys
import time

import attack

REQUESTS = (
    b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50 + b"GET /stats HTTP/1.1\r\nHost: localhost\r\n\r\n"
) * 20


def flood(server, n, seconds):
    """n clients pipeline requests and never read."""
    clients, cut, sent, end = [None] * n, 0, 0, time.monotonic() + seconds
    while time.monotonic() < end:
        for i in range(n):
            if clients[i] is None:
                clients[i] = attack.connect(server, receive=4096)
                clients[i].setblocking(False)
            try:
                with contextlib.suppress(BlockingIOError):
                    sent += clients[i].send(REQUESTS)
            except ConnectionError:
                clients[i].close()
                clients[i] = None
                cut += 1
        time.sleep(0.005)
    for c in clients:
        if c:
            c.close()
    return {"sent_mib": sent >> 20, "cut": cut}


if __name__ == "__main__":
    sys.exit(attack.main("pipeline_flood", flood, 64, 60))
