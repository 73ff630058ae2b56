"""Bodies whose JSON takes many times their bytes: objects in lists in objects, at and beyond what is allowed."""

import time

from attack_rig import Attack, main

UNITS = [
    b"{},",
    b"[],",
    b'{"a":{}},',
    b"1,",
    b'"",',
    b'{"type":"text","text":""},',
    b"[[[[[[[[{}]]]]]]]],",
    b"1e5,",
    b'"\\u0000",',
]


def attack(seconds, clients):
    a = Attack(96)
    end = time.monotonic() + seconds

    def client(k):
        n = 0
        while time.monotonic() < end:
            unit = UNITS[(k + n) % len(UNITS)]
            size = (100_000, 700_000, 3_000_000, 12_000_000)[(k + n) % 4]
            body = b'{"messages":[{"role":"user","content":[' + unit * (size // len(unit)) + unit[:-1] + b"]}]}"
            a.send(
                ("/v1/chat/completions", "/v1/messages", "/api/chat", "/apply-template")[n % 4],
                body[: 4 << 20] if n % 4 == 3 else body,
            )
            n += 1

    with a:
        return a.watched(clients, client)


if __name__ == "__main__":
    main(attack)
