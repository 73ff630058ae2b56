"""Storms on the key file, on the models behind one server, and by a hub that lies: seconds here, minutes with RADISH_LONG=1."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import hostile_hub  # noqa: E402
import key_storm  # noqa: E402
import swap_storm  # noqa: E402

SECONDS = 120 if os.environ.get("RADISH_LONG") else 4


def test_key_storm(tmp_path):
    f = key_storm.storm(2, SECONDS, tmp_path)
    assert f["read_again"] > 0 and f["kept"] > 0 and f["answers"][200] > 0 and f["answers"][401] > 0, f


def test_hostile_hub(tmp_path):
    f = hostile_hub.lying(4, SECONDS, tmp_path)
    assert f["asked_of_the_hub"] > 10, f
    assert f["memory_mib"]["most"] - f["memory_mib"]["before"] <= 64, f  # answers of 9 MB come in


def test_swap_storm(tmp_path):
    f = swap_storm.storm(8, SECONDS, tmp_path)
    assert f["counts"]["asks 200"] > 0 and f["counts"]["hung up"] > 0, f
    assert f["memory_mib"]["after"] - f["memory_mib"]["before"] <= 32, f
