"""What the tests of grammars share: many questions to `radish grammar match` in one run."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("RADISH_BUILD") or ROOT / "build")


@pytest.fixture(scope="session")
def ask():
    """Lines to answers; a program that ends too early fails the test with the line that it was at."""
    path = BUILD / "radish"
    assert os.access(path, os.X_OK), "%s is missing: build first, or set RADISH_BUILD" % path

    def run(lines, timeout=900):
        text = "".join(json.dumps(x) + "\n" for x in lines)
        r = subprocess.run(
            [path, "grammar", "match", "--jsonl"], input=text.encode(), capture_output=True, timeout=timeout
        )
        answers = [json.loads(x) for x in r.stdout.decode().splitlines()]
        assert len(answers) == len(lines), "ended with %d at line %.2000s: %s" % (
            r.returncode,
            json.dumps(lines[len(answers)]),
            r.stderr[-400:],
        )
        return answers

    return run
