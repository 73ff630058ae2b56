#!/usr/bin/env python3
"""Writes the table of keywords in docs/structured-output.md: the public suite's cases, as test_schema_grammar.py counts them.

tests/grammar/make_keyword_table.py       with the program in build/, or $RADISH_BUILD
"""

import json
import os
import subprocess
from pathlib import Path

import test_schema_grammar as tests

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("RADISH_BUILD") or ROOT / "build")
BEGIN, END = "<!-- keywords: made by tests/grammar/make_keyword_table.py -->\n", "<!-- end of keywords -->\n"


def ask(lines):
    text = "".join(json.dumps(x) + "\n" for x in lines)
    r = subprocess.run(
        [BUILD / "radish", "grammar", "match", "--jsonl"], input=text.encode(), capture_output=True, check=True
    )
    return [json.loads(x) for x in r.stdout.decode().splitlines()]


def table(draft):
    counts, _, _ = tests.suite_results(ask, draft)
    rows = [
        "| keyword | cases | right | valid, refused | invalid, accepted | not supported |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for keyword in sorted(counts):
        c = counts[keyword]
        row = [sum(c.values()), c["ok"], c["refused"], c["unsound"], c["unsupported"]]
        rows.append("| `%s` | %s |" % (keyword, " | ".join(map(str, row))))
    total = [sum(sum(c.values()) for c in counts.values())]
    total += [sum(c[k] for c in counts.values()) for k in ("ok", "refused", "unsound", "unsupported")]
    rows.append("| **all** | %s |" % " | ".join(map(str, total)))
    return "\n".join(rows) + "\n"


def main():
    page = ROOT / "docs" / "structured-output.md"
    text = page.read_text()
    made = "".join("\n### %s\n\n%s" % (d, table(d)) for d in ("draft2020-12", "draft7"))
    head, rest = text.split(BEGIN)
    page.write_text(head + BEGIN + made + "\n" + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
