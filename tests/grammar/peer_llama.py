"""What llama.cpp's grammars accept, asked of a program (bench/grammar/llama_grammar.cpp); one that dies or hangs is begun anew."""

import json
import select
import subprocess

SECONDS = 10


def answers(program, lines):
    """For each {"schema", "texts"}: {"accept": [..]} or {"error": its words, "crash" or "hangs"}."""
    p, out = None, []
    for line in lines:
        if p is None:
            p = subprocess.Popen(
                [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
            )
        p.stdin.write(json.dumps(line).encode() + b"\n")
        ready, _, _ = select.select([p.stdout], [], [], SECONDS)
        answer = p.stdout.readline() if ready else b""
        if answer.endswith(b"\n"):
            out.append(json.loads(answer))
            continue
        p.kill()
        p.wait()
        out.append({"error": "crash" if ready else "hangs"})
        p = None
    if p:
        p.stdin.close()
        p.wait()
    return out
