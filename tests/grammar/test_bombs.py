"""docs/faults.md F29: schemas and grammars made to take for ever end in an error or an answer, soon and in little memory."""

import json
import os
import resource
import subprocess
import time
from pathlib import Path

import pytest
from bombs import BOMBS

BUILD = Path(os.environ.get("RADISH_BUILD") or Path(__file__).resolve().parents[2] / "build")
SECONDS = 30  # of this machine, however busy: without limits these take minutes to years
MEMORY = 1 << 30


def limited():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_answered(name):
    start = time.monotonic()
    r = subprocess.run(
        [BUILD / "radish", "grammar", "match", "--jsonl"],
        input=(BOMBS[name] + "\n").encode(),
        capture_output=True,
        timeout=SECONDS,
        preexec_fn=None if "asan" in str(BUILD) else limited,
    )
    assert r.returncode == 0, r.stderr
    answer = json.loads(r.stdout)
    assert "error" in answer or "accept" in answer
    print(name, "%.2f s" % (time.monotonic() - start), str(answer)[:90])
