"""Many bodies of many megabytes at once: some whole, some that stop in the middle, some whose answer nobody reads."""

import json
import socket
import time

from attack_rig import Attack, main


def attack(seconds, clients):
    a = Attack(128)
    s = a.server
    end = time.monotonic() + seconds
    text = "red blue " * (200 << 10)
    chat = json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": 1}).encode()
    tokens = json.dumps({"content": text[: 1 << 20], "with_pieces": True}).encode()

    def whole(path, body):
        while time.monotonic() < end:
            a.send(path, body)

    def half():
        while time.monotonic() < end:
            with socket.create_connection(("127.0.0.1", s.port), timeout=30) as c:
                try:
                    c.sendall(s.post_bytes("/v1/chat/completions", chat)[: len(chat) // 2])
                    time.sleep(min(0.5, max(0, end - time.monotonic())))
                except OSError:
                    pass

    def deaf():
        while time.monotonic() < end:
            with socket.socket() as c:
                c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                c.connect(("127.0.0.1", s.port))
                try:
                    c.sendall(s.post_bytes("/tokenize", tokens))
                    time.sleep(min(1, max(0, end - time.monotonic())))
                except OSError:
                    pass

    kinds = [lambda: whole("/v1/chat/completions", chat), lambda: whole("/tokenize", tokens), half, deaf]
    small = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}

    def client(k):
        if k > 0:
            kinds[k % len(kinds)]()
            return
        while time.monotonic() < end:  # a well-behaved one: never refused
            status, answer = s.post("/v1/chat/completions", small)
            assert status == 200, answer
            time.sleep(0.02)

    with a:
        return a.watched(clients, client)


if __name__ == "__main__":
    main(attack)
