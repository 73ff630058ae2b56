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


@pytest.mark.parametrize(
    "grammar, example",
    [
        ('root ::= "a"{3}', "aaa"),
        ('root ::= (a | b){20000}\na ::= "x" | a? "x"\nb ::= "x" | "x" b?', "none: even a shortest text is long"),
        (
            "\n".join("r%d ::= r%d r%d" % (i, i + 1, i + 1) for i in range(40)) + '\nr40 ::= "b"\nroot ::= r0 "c"',
            "none",
        ),
    ],
)
def test_a_form_without_a_short_text_is_a_form(grammar, example, tmp_path):
    (tmp_path / "x.gbnf").write_text(grammar + "\n")
    r = subprocess.run(
        [BUILD / "radish", "grammar", "check", tmp_path / "x.gbnf"], capture_output=True, text=True, timeout=SECONDS
    )
    assert r.returncode == 0, (r.returncode, r.stderr)
    assert "  example   " + example in r.stdout


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
