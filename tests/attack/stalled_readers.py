#!/usr/bin/env python3
"""n clients open streams and read nothing: answers with 20 alternatives a token, and the events of the monitor page. Another
client, who reads, asks all the while."""

import contextlib
import json
import sys
import threading
import time

import attack

ANSWER = {"prompt": "abcabc", "max_tokens": 200, "ignore_eos": True, "stream": True, "logprobs": 20, "temperature": 1}
EVENTS = b"GET /v1/monitor/events HTTP/1.1\r\nHost: localhost\r\n\r\n"


def request_of(k):
    if k % 2:
        return EVENTS
    body = json.dumps(ANSWER | {"seed": k}).encode()
    return (
        b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (attack.TEXT.encode(), len(body)) + body
    )


class Reader(threading.Thread):
    """Asks one answer after another; milliseconds of each."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.ms, self.failed, self.ending = server, [], [], threading.Event()
        self.n_full = 0  # the queue: 256 requests may wait

    def run(self):
        while not self.ending.wait(0.01):
            begun = time.perf_counter()
            status, body = self.server.post(attack.TEXT, {"prompt": "xyz", "max_tokens": 8, "ignore_eos": True})
            self.n_full += status == 429
            if status == 200:
                self.ms.append((time.perf_counter() - begun) * 1000)
            elif status != 429:
                self.failed.append((status, body))

    def end(self):
        self.ending.set()
        self.join()
        ms = sorted(self.ms)
        return {
            "answers": len(ms),
            "queue_full": self.n_full,
            "failed": self.failed[:3],
            "p50_ms": round(ms[len(ms) // 2], 1),
            "max_ms": round(ms[-1], 1),
        }


def stall(server, n, seconds):
    """n streams that nobody reads; those that are cut begin again."""
    clients, cut = [None] * n, 0
    reader = Reader(server)
    reader.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for k in range(n):
            if clients[k] is None:
                with contextlib.suppress(OSError):
                    clients[k] = attack.connect(server, receive=4096)
                    clients[k].sendall(request_of(k))
                    clients[k].setblocking(False)
            elif clients[k].fileno() >= 0 and hung_up(clients[k]):
                clients[k].close()
                clients[k] = None
                cut += 1
        time.sleep(0.1)
    open_at_the_end = sum(c is not None for c in clients)
    figures = reader.end()
    for c in clients:
        if c:
            c.close()
    assert not figures["failed"], figures
    return {"cut": cut, "open": open_at_the_end, "reader": figures}


def hung_up(s):
    """Without taking anything of what waits: an error is all that can be seen."""
    return s.getsockopt(attack.socket.SOL_SOCKET, attack.socket.SO_ERROR) != 0


if __name__ == "__main__":
    sys.exit(attack.main("stalled_readers", stall, 1000, 30))
