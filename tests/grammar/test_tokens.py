"""Generated values of schemas, valid and mutated, through the matcher's tokens: a real vocabulary, random splits of each text.

A value that the validator refuses must be refused, without exception; a valid one accepted, in whichever way its text is split
into tokens (grammar_tokens.c). RADISH_LONG=1: 100,000 of each and Qwen's vocabulary.
"""

import itertools
import json
import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import jsonschema
import pytest
import schema_gen
import schema_order

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("RADISH_BUILD") or ROOT / "build")
MODELS = Path(os.environ.get("RADISH_MODELS") or Path.home() / ".cache/radish/models")
LONG = os.environ.get("RADISH_LONG") == "1"
MODEL = MODELS / ("qwen2.5-coder-0.5b.gguf" if LONG else "smollm2.gguf")
PARTS = 10 if LONG else 1
WANTED = 10000 if LONG else 1000  # valid ones of a part, and mutated ones that are not


def answers(lines, splits, seed):
    text = "".join(json.dumps(x) + "\n" for x in lines)
    args = [BUILD / "tests/grammar_tokens", MODEL, str(splits), str(seed)]
    r = subprocess.run(args, input=text.encode(), capture_output=True, timeout=3000)
    out = [json.loads(x) for x in r.stdout.decode().splitlines()]
    assert len(out) == len(lines), (r.returncode, r.stderr[-500:], lines[len(out)])
    return out


def all_schemas(part):
    """Those of tools, then random ones without end."""
    yield from map(json.loads, (Path(__file__).parent / "real_schemas.jsonl").read_text().splitlines())
    for i in itertools.count(77_000_000 + 1_000_000 * part):
        yield schema_gen.schema(schema_gen.seeded(i))


def values(schema, rng, n):
    good = [schema_gen.make(rng, schema, schema) for _ in range(n)]
    return good + [schema_gen.mutated(rng, v) for v in good]


CHECKER = jsonschema.FormatChecker(jsonschema.Draft202012Validator.FORMAT_CHECKER.checkers)


@CHECKER.checks("email")  # jsonschema's looks for an @ and no more
def is_email(v):
    return not isinstance(v, str) or (v.isascii() and re.fullmatch("[^@]+@[^@]*[^@.-]", v) is not None)


def narrower(schema, text):
    """Valid, and yet it may be refused: docs/structured-output.md."""
    if re.search("[0-9]e[-+][0-9]", text):
        return "exponent"
    if re.search("[\u2028\u2029]", text) and "pattern" in json.dumps(schema):
        return "line separator"  # ECMA-262's dot has none of them, Python's all
    return None


def verdicts(schema, values):
    """{text: valid, invalid, or what radish may take either way}; format is held to, as radish does."""
    of = jsonschema.Draft202012Validator
    strict, lax = of(schema, format_checker=CHECKER), of(schema)
    out = {}
    for v, text in zip(values, schema_order.texts(schema, values)):
        lone = any(0xD800 <= ord(c) < 0xE000 for c in text)
        if not lone:
            valid = strict.is_valid(v) and (narrower(schema, text) or "valid")
            out[text] = valid or ("format" if lax.is_valid(v) else "invalid")
    return out


@pytest.mark.parametrize("part", range(PARTS))
def test_any_tokenisation_of_generated_values(part):
    rng = schema_gen.seeded(part)
    lines, truths, n = [], [], Counter()
    for schema in all_schemas(part):
        truth = verdicts(schema, values(schema, rng, 30 if LONG else 6))
        n.update(truth.values())
        lines.append({"schema": schema, "texts": list(truth)})
        truths.append(truth)
        if n["valid"] >= 1.3 * WANTED and n["invalid"] >= 1.3 * WANTED:
            break
    seen, wrong, refused = Counter(), [], []
    for line, truth, answer in zip(lines, truths, answers(lines, 2, part + 1)):
        assert "broken" not in answer, (answer, line)
        if "error" in answer:
            assert "without any text" not in answer["error"] or "valid" not in truth.values(), (answer, line)
            seen["not supported"] += len(truth)
            continue
        seen["tokens"] += answer["n_tokens"]
        for (text, valid), accepted in zip(truth.items(), answer["accept"]):
            seen[valid + (", accepted" if accepted else ", refused")] += 1
            if accepted and valid == "invalid":
                wrong.append((line["schema"], text))
            if not accepted and valid == "valid":
                refused.append((line["schema"], text))
    print(len(lines), "schemas", dict(seen))
    assert wrong == []
    assert refused == []
    assert seen["valid, accepted"] >= WANTED and seen["invalid, refused"] >= WANTED
