"""What models write when they are held to a schema: whole outputs are valid, cut ones are beginnings of valid ones.

Schemas of tools and APIs (real_schemas.jsonl), of the public suite as far as radish supports them, and with RADISH_LONG=1
those of the openai and anthropic packages' models: 400 in all, with two models, at temperature 1. Otherwise a sample.
Judged by the jsonschema package with its format checks, and cut ones by `radish grammar match`.

    RADISH_LONG=1 python -m pytest -s tests/grammar/test_model_outputs.py        prints the figures
"""

import itertools
import json
import os
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests/server"), str(ROOT / "bench/grammar")]
import schemas as sources  # noqa: E402
from radish_server import Server  # noqa: E402

LONG = os.environ.get("RADISH_LONG") == "1"
COUNTS = {"own": 110, "draft7": 80, "draft2020-12": 110, "apis": 100} if LONG else {"own": 24, "draft2020-12": 16}
MODELS = ("smollm2", "qwen2.5-coder-0.5b") if LONG else ("smollm2",)
TOKENS = 96 if LONG else 48
MAX_SCHEMA = 60000  # characters; compiling has a second, also on a busy machine
AT_A_TIME = 16


def candidates(source):
    if source == "apis":
        for name, schema, _ in sources.apis(("openai", "anthropic")):
            yield name, schema
        return
    for name, schema, instances in sources.load([source]):
        # Of the suite: what could be asked of a model, with at least one value that is an object, a list or a text.
        if instances is None or (isinstance(schema, dict) and any(isinstance(i, (dict, list, str)) for i in instances)):
            yield name, schema


def supported(ask, source, n):
    """n schemas that a grammar can hold, spread over the source; there must be as many."""
    every = [c for c in itertools.islice(candidates(source), 700) if len(json.dumps(c[1])) <= MAX_SCHEMA]
    answers = ask([{"schema": s, "instances": []} for _, s in every])
    good = [c for c, a in zip(every, answers) if "error" not in a]
    assert len(good) >= n, (source, len(good))
    return [good[i * len(good) // n] for i in range(n)]


@pytest.fixture(scope="session")
def chosen(ask):
    return [c for source, n in COUNTS.items() for c in supported(ask, source, n)]


def spelled(schema):
    """OpenAPI's nullable as the standard has it."""
    if isinstance(schema, list):
        return [spelled(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    out = {k: spelled(v) for k, v in schema.items()}
    if out.get("nullable") is True and isinstance(out.get("type"), str):
        out["type"] = [out["type"], "null"]
    return out


def judge(schema, text):
    schema = spelled(schema)
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    value = json.loads(text)
    return [e.message for e in validator(schema, format_checker=validator.FORMAT_CHECKER).iter_errors(value)]


@pytest.mark.parametrize("model", MODELS)
def test_outputs_of_models_are_valid(ask, chosen, model):
    server = Server("--threads", "2", "--kv-tokens", "65536", "--ctx", "2048", model=model)

    def write(numbered):
        i, (name, schema) = numbered
        title = schema.get("title") or name.rpartition("/")[2]
        body = {
            "messages": [{"role": "user", "content": "Write an example of %s." % title[:80]}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}},
            "temperature": 1.0,
            "seed": i,
            "max_tokens": TOKENS,
        }
        status, _, answer = server.request("POST", "/v1/chat/completions", body, timeout=900)
        return status, json.loads(answer)

    try:
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            answers = list(pool.map(write, enumerate(chosen)))
        assert server.stats()["engine"]["accounting_errors"] == 0
    finally:
        server.stop()
    counts, wrong, lines = Counter(), [], []
    for (name, schema), (status, answer) in zip(chosen, answers):
        if status != 200:
            wrong.append((name, answer))
            continue
        text, why = answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"]
        counts[why] += 1
        counts["tokens"] += answer["usage"]["completion_tokens"]
        counts["forced"] += answer["timings"].get("forced_n", 0)
        lines.append({"schema": schema, "texts": [text]})
        if why == "stop":
            errors = judge(schema, text)
            if errors:
                wrong.append((name, text, errors))
    for line, (name, _), got in zip(lines, chosen, ask(lines)):
        if got.get("begins") != [True]:
            wrong.append((name, line["texts"], got))
    whole = counts["stop"] - sum(len(w) == 3 and isinstance(w[2], list) for w in wrong)
    print(
        "%s: %d schemas: %d of %d whole outputs valid, %d cut by max_tokens %d, of which wrong: %d; %d tokens, %d forced"
        % (
            model,
            len(chosen),
            whole,
            counts["stop"],
            counts["length"],
            TOKENS,
            len(wrong) - counts["stop"] + whole,
            counts["tokens"],
            counts["forced"],
        )
    )
    assert not wrong, "%d wrong: %s" % (len(wrong), json.dumps(wrong[:20])[:6000])
    assert counts["stop"] + counts["length"] == len(chosen)
