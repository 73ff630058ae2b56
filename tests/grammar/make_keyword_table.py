#!/usr/bin/env python3
"""Writes the table of keywords in docs/structured-output.md: the public suite's cases, as test_schema_grammar.py counts them.

    tests/grammar/make_keyword_table.py [--llama PROGRAM]       with radish in build/, or $RADISH_BUILD

--llama: bench/grammar/llama_grammar.cpp, built as it says: llama-server's columns, which stay as they are without it.
"""

import argparse
import json
import os
import re
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import peer_llama
import schema_order
import schema_suite
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


def llama_results(program, draft):
    """{keyword: Counter of ok, refused, unsound, unsupported}: each instance as it stands, or in the schema's order."""
    groups = list(schema_suite.cases(draft))
    lines = []
    for _, _, schema, cases in groups:
        schema = tests.dialect(draft, schema)
        try:
            ordered = schema_order.texts(schema, [t["data"] for t in cases])
        except Exception:  # a reference that the validator would have to load
            ordered = [json.dumps(t["data"]) for t in cases]
        texts = [x for t, o in zip(cases, ordered) for x in (json.dumps(t["data"], ensure_ascii=False), o)]
        lines.append({"schema": schema, "texts": texts})
    counts = defaultdict(Counter)
    for (keyword, _, _, cases), answer in zip(groups, peer_llama.answers(program, lines)):
        if "error" in answer:
            counts[keyword]["unsupported"] += len(cases)
            continue
        for i, test in enumerate(cases):
            accepted = answer["accept"][2 * i] or answer["accept"][2 * i + 1]
            counts[keyword]["ok" if accepted == test["valid"] else "unsound" if accepted else "refused"] += 1
    return counts


KINDS = ("ok", "refused", "unsound", "unsupported")


def columns_of(text, draft):
    """llama-server's columns of a page that has them: {keyword: the row's last four}."""
    part = text.split("### %s\n" % draft)[-1].split("\n### ")[0]
    rows = (re.findall(r"[^|]+", line) for line in part.splitlines() if line.startswith("| "))
    return {r[0].strip(): [x.strip() for x in r[6:10]] for r in rows if len(r) >= 10}


def table(draft, program, page):
    counts, _, _ = tests.suite_results(ask, draft)
    theirs = llama_results(program, draft) if program else None
    kept = columns_of(page, draft)
    rows = [
        "| keyword | cases | right | valid, refused | invalid, accepted | not supported "
        "| llama-server: right | valid, refused | invalid, accepted | not supported |",
        "|---|" + "--:|" * 9,
    ]

    def add(name, c, other):
        cells = [sum(c.values())] + [c[k] for k in KINDS]
        cells += [other[k] for k in KINDS] if other is not None else kept.get(name, ["", "", "", ""])
        rows.append("| %s | %s |" % (name, " | ".join(map(str, cells))))

    for keyword in sorted(counts):
        add("`%s`" % keyword, counts[keyword], theirs and theirs[keyword])
    add("**all**", sum(counts.values(), Counter()), theirs and sum(theirs.values(), Counter()))
    return "\n".join(rows) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--llama", metavar="PROGRAM")
    program = p.parse_args().llama
    page = ROOT / "docs" / "structured-output.md"
    text = page.read_text()
    made = "".join("\n### %s\n\n%s" % (d, table(d, program, text)) for d in ("draft2020-12", "draft7"))
    head, rest = text.split(BEGIN)
    page.write_text(head + BEGIN + made + "\n" + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
