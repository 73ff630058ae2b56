"""Grammars of which no two are alike, each as fat as it may be, from many clients at once."""

import json
import random
import time

from attack_rig import Attack, Watch, anonymous_mib, main

GRAMMARS_MIB = 8
N = 300


def form(k):
    """450 letters to write, beside a text of 6,000 letters that nobody else has."""
    letters = "".join(random.Random(k).choices("abcdefghijklmnopqrstuvwxyz", k=6000))
    return {"regex": "[ab]{450}|x" + letters}


def attack(seconds, clients):
    a = Attack(96, "--ctx", "512", "--grammar-memory", f"{GRAMMARS_MIB}M", "--kv-tokens", "65536")
    end = time.monotonic() + max(seconds, 30)
    peak = [0]

    def ask(k):
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 460, "structured_outputs": form(k)}
        return a.send("/v1/chat/completions", json.dumps(body).encode())

    def client(k):
        for i in range(k, N, max(clients, 60)):
            if time.monotonic() > end:
                return
            status, answer = ask(i)
            assert status in (200, 429), (status, answer)
            if status == 200:
                text = json.loads(answer)["choices"][0]["message"]["content"]
                assert set(text) <= set("ab") and len(text) == 450, text
            g = a.server.stats()["grammars"]
            assert g["used_bytes"] <= g["limit_bytes"] == GRAMMARS_MIB << 20, g
            peak[0] = max(peak[0], g["used_bytes"])

    with a:
        with Watch(a.server) as w:
            a.beside(max(clients, 60), client)
        assert a.statuses[200] > 10 and a.statuses[429] > 10, a.statuses
        # Later ones are served: the others have gone from use.
        assert all(ask(N + k)[0] == 200 for k in range(12))
        figures = a.finish(w)
        figures["grammars_peak_mib"] = round(peak[0] / 2**20, 1)
        figures["rss_anon_mib"] = round(anonymous_mib(a.server), 1)
        print(json.dumps(figures))
        return figures


if __name__ == "__main__":
    main(attack)
