"""One tenant fills the store of responses with as much as it takes: another one's answers stay."""

import json
import random
import time

from attack_rig import Attack, main


def attack(seconds, clients, tmp):
    keys = tmp / "keys"
    keys.write_text("victim\nattacker\n")
    a = Attack(96, "--api-key", "own", "--api-key-file", str(keys), env={"RADISH_API_KEY": ""})
    # only the server's own key may ask for what the rig looks at
    plain = a.server.request
    a.server.request = lambda method, path, body=None, headers=None, timeout=120: plain(
        method, path, body, {"Authorization": "Bearer own"} | (headers or {}), timeout
    )
    end = time.monotonic() + seconds
    victim, attacker = {"Authorization": "Bearer victim"}, {"Authorization": "Bearer attacker"}

    def make(headers, metadata):
        status, answer = a.send(
            "/v1/responses", json.dumps({"input": "a", "max_output_tokens": 1, "metadata": metadata}).encode(), headers
        )
        return json.loads(answer)["id"] if status == 200 else None

    kept = [make(victim, {"a": "b" * 1000}) for _ in range(20)]
    assert all(kept)
    rng = random.Random(1)

    def client(k):
        while time.monotonic() < end:
            make(
                attacker,
                {"a": "c" * rng.choice((10, 1_000_000, 6_000_000))} if k % 4 else {f"{i}": {} for i in range(2000)},
            )

    with a:
        figures = a.watched(clients, client, stored=True)
        for r in kept:
            status, _, answer = plain("GET", f"/v1/responses/{r}", headers=victim)
            assert status == 200, answer
        assert figures["used_at_the_end"].keys() <= {"stored"}, figures
        return figures


if __name__ == "__main__":
    import pathlib
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        main(lambda seconds, clients: attack(seconds, clients, pathlib.Path(folder)))
