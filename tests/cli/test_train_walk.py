"""docs/lora.md, "A walk": its lines, run as they stand, end with an adapter that answers; so does examples/train.c."""

import os
import re
import socket
import subprocess
import textwrap


def walk(root):
    text = (root / "docs/lora.md").read_text().split("### A walk\n", 1)[1].split("\n#", 1)[0]
    blocks = re.findall(r"((?:^    .*\n|^\n)+)", text, re.M)
    return textwrap.dedent("".join(b for b in blocks if b.strip()))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_the_walk_of_the_page(root, build, model, tmp_path):
    script = "set -e\n" + walk(root).replace("8000", str(free_port()))
    assert "radish train" in script and "curl" in script
    path = "%s:%s" % (build, os.environ["PATH"])
    r = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        timeout=280,
        text=True,
    )
    assert r.returncode == 0, r.stderr[-2000:]
    assert r.stdout.count("Arr, a pirate!") == 2, r.stdout


def test_the_example_trains_and_answers(root, build, model, tmp_path):
    program = str(tmp_path / "train")
    compile_ = ["cc", "-std=c17", "-Wall", "-Werror", str(root / "examples/train.c"), "-I%s" % (root / "include")]
    subprocess.run([*compile_, "-o", program, "-L%s" % build, "-lradish", "-Wl,-rpath,%s" % build], check=True)
    for _ in range(2):
        r = subprocess.run([program, model, str(tmp_path / "pirate")], capture_output=True, timeout=280, text=True)
        assert r.returncode == 0, r.stderr
        assert "Arr, a pirate!" in r.stdout
