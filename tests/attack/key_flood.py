"""Fields that nobody knows, ten thousand in a body, at the top and inside of others: to keep an io thread from its work."""

import json
import time

from attack_rig import Attack, main

USER = [{"role": "user", "content": "a"}]


def attack(seconds, clients):
    a = Attack(128)
    bodies = [
        json.dumps(b).encode()
        for b in (
            {"messages": USER, "max_tokens": 1} | {f"field_{i}": i for i in range(60000)},
            {"messages": USER, "max_tokens": 1, "metadata": {f"field_{i}": {"a": i} for i in range(20000)}},
            {"messages": USER, "max_tokens": 1, "logit_bias": {str(i): 1 for i in range(90000)}},
            {"messages": USER, "max_tokens": 1, "stop": ["a"] * 90000},
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "a", f"field_{i}": 1} for i in range(20000)]}
                ],
                "max_tokens": 1,
            },
        )
    ]
    end = time.monotonic() + seconds

    def client(k):
        while time.monotonic() < end:
            a.send("/v1/chat/completions", bodies[k % len(bodies)])

    with a:
        return a.watched(clients, client)


if __name__ == "__main__":
    main(attack)
