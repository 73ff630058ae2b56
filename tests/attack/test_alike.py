"""What a storm of requests gets, each gets alone: some hundred of each kind; many more, from a new seed, with RADISH_LONG=1."""

import os
import random

import alike
import pytest

LONG = os.environ.get("RADISH_LONG")
REQUESTS = {"text": 500, "ranks": 300, "sees": 300, "windows": 300}
FAMILIES = {"sees": ["qwen2vl", "qwen25vl", "qwen3vl", "gemma3"], "windows": ["gemma3", "gemma2", "qwen2", "qwen3"]}


@pytest.mark.parametrize("kind", REQUESTS)
def test_each_answer_is_what_it_is_alone(kind):
    seed = random.SystemRandom().randrange(1 << 30) if LONG else 1
    family = random.Random(seed).choice(FAMILIES[kind]) if LONG and kind in FAMILIES else None
    counts = alike.storm(requests=20 * REQUESTS[kind] if LONG else REQUESTS[kind], seed=seed, kind=kind, family=family)
    assert counts["200"] > REQUESTS[kind] / 3 and counts["400"] > 0 and counts["hung up"] > 0, counts
    assert counts["compared"] > REQUESTS[kind] / 2, counts
