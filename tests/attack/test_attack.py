"""The attacks in short: every /health answered, all requests end, the accounts are exact, memory bounded. Long: the scripts."""

import cancel_storm
import half_heads
import pipeline_flood
import pytest
import slow_bodies
import stalled_readers
import wrong_keys
from attack import run

# attack, clients, seconds, MiB that the server may have grown by at most
SHORT = {
    "pipeline_flood": (pipeline_flood.flood, 16, 3, 32),
    "half_heads": (half_heads.hold, 1000, 2, 64),
    "slow_bodies": (slow_bodies.drip, 100, 3, 96),
    "stalled_readers": (stalled_readers.stall, 300, 3, 64),
    "cancel_storm": (cancel_storm.storm, 8, 3, 64),
}


@pytest.mark.parametrize("name", SHORT)
def test_attack(name):
    attack, n, seconds, most = SHORT[name]
    f = run(name, attack, n, seconds)
    assert f["health"]["max_ms"] < 4000, f  # of a busy machine; alone it is a few ms
    assert f["memory_mib"]["most"] - f["memory_mib"]["before"] <= most, f


def test_wrong_keys(tmp_path):
    rows = wrong_keys.flood(4, 1, tmp_path)
    assert [r["key_bytes"] for r in rows] == list(wrong_keys.LENGTHS)
