"""Calls that must come: tool_choice required and named, strict functions and others, several tools with nested schemas, in
chat completions, Responses and Messages, at temperature 1. Every one parses, and follows its schema. Where several calls
are allowed, max_tokens may come behind the last of them: what is there is whole then.

The same where the system message shows calls as plain text, as smolagents does: then the call may be written so, behind some
words, and it is in the content, too.

    RADISH_LONG=1 python -m pytest -s tests/server/test_forced_calls.py        1,000 with each of two models, and 250
"""

import json
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pytest
from radish_server import Server

LONG = os.environ.get("RADISH_LONG") == "1"
RUNS = 1000 if LONG else 36
MODELS = ("smollm2", "qwen2.5-coder-0.5b") if LONG else ("smollm2",)
AT_A_TIME = 32
TOKENS = 160

# instructions that show calls as text, and what such clients stop at
SHOWN = """Solve the task by actions, one at a time.
Task: "Is it on?"

Action:
{
  "name": "look",
  "arguments": {"where": "hall"}
}
Observation: yes

Action:
{
  "name": "final_answer",
  "arguments": {"answer": "It is on."}
}

Now begin!"""
STOPS = ["Observation:", "Calling tools:", "Thought"]


def closed(properties, required=None, **more):
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
        **more,
    }


PLACE = closed({"city": {"type": "string", "maxLength": 24}, "zip": {"anyOf": [{"type": "string"}, {"type": "null"}]}})
SCHEMAS = {
    "book_hotel": closed(
        {
            "guest": closed({"name": {"type": "string", "maxLength": 24}, "age": {"type": "integer", "minimum": 18}}),
            "where": {"$ref": "#/$defs/place"},
            "from": {"type": "string", "format": "date"},
            "rooms": {
                "type": "array",
                "items": closed(
                    {"beds": {"type": "integer", "minimum": 1, "maximum": 3}, "kind": {"enum": ["a", "b"]}}
                ),
                "minItems": 1,
                "maxItems": 2,
            },
        },
        **{"$defs": {"place": PLACE}},
    ),
    "search": closed(
        {"query": {"type": "string", "minLength": 1, "maxLength": 40}, "limit": {"type": "integer"}}, ["query"]
    ),
    "set_lights": closed(
        {
            "lights": {
                "type": "array",
                "items": {
                    "anyOf": [closed({"room": {"enum": ["hall", "bath"]}, "on": {"type": "boolean"}}), {"const": "all"}]
                },
                "maxItems": 3,
            },
            "level": {"type": "number", "minimum": 0, "maximum": 1},
        }
    ),
    "done": closed({}),
}
QUESTIONS = ["Book a room in Rome for Ada.", "Find the news.", "Lights on in the hall!", "Are you done?", "Hello."]


def function(name, strict):
    return {
        "name": name,
        "description": "To " + name,
        "parameters": SCHEMAS[name],
        **({"strict": True} if strict else {}),
    }


def post(server, path, body):
    status, _, answer = server.request("POST", path, body, timeout=900)  # a busy machine, many at a time
    assert status == 200, answer
    return json.loads(answer)


def chat(server, i, question, named, strict, one):
    choice = {"type": "function", "function": {"name": named}} if named else "required"
    body = {
        "messages": [{"role": "user", "content": question}],
        "tools": [{"type": "function", "function": function(n, strict)} for n in SCHEMAS],
        "tool_choice": choice,
        "parallel_tool_calls": not one,
        "max_tokens": TOKENS,
        "temperature": 1.0,
        "seed": i,
    }
    choice = post(server, "/v1/chat/completions", body)["choices"][0]
    assert choice["finish_reason"] == "tool_calls" or not one and choice["finish_reason"] == "length", choice
    calls = [c["function"] for c in choice["message"]["tool_calls"]]
    return [(c["name"], json.loads(c["arguments"])) for c in calls]


def responses(server, i, question, named, strict, one):
    body = {
        "input": question,
        "tools": [{"type": "function", **function(n, strict)} for n in SCHEMAS],
        "tool_choice": {"type": "function", "name": named} if named else "required",
        "parallel_tool_calls": not one,
        "max_output_tokens": TOKENS,
        "temperature": 1.0,
        "seed": i,
    }
    answer = post(server, "/v1/responses", body)
    assert answer["status"] == "completed" or not one and answer["status"] == "incomplete", answer
    return [(o["name"], json.loads(o["arguments"])) for o in answer["output"] if o["type"] == "function_call"]


def messages(server, i, question, named, strict, one):
    body = {
        "messages": [{"role": "user", "content": question}],
        "tools": [{"name": n, "description": "To " + n, "input_schema": SCHEMAS[n]} for n in SCHEMAS],
        "tool_choice": {"type": "tool", "name": named} if named else {"type": "any"},
        "max_tokens": TOKENS,
        "temperature": 1.0,
        "seed": i,
    }
    body["tool_choice"]["disable_parallel_tool_use"] = one
    answer = post(server, "/v1/messages", body)
    assert answer["stop_reason"] == "tool_use" or not one and answer["stop_reason"] == "max_tokens", answer
    return [(b["name"], b["input"]) for b in answer["content"] if b["type"] == "tool_use"]


def shown(server, i, question, named, strict, one):
    """A chat whose system message shows calls as text: what was written of them is content."""
    choice = {"type": "function", "function": {"name": named}} if named else "required"
    body = {
        "messages": [{"role": "system", "content": SHOWN}, {"role": "user", "content": question}],
        "tools": [{"type": "function", "function": function(n, strict)} for n in SCHEMAS],
        "tool_choice": choice,
        "parallel_tool_calls": not one,
        "max_tokens": 4 * TOKENS,
        "temperature": 1.0,
        "seed": i,
        "stop": STOPS[: i % 4],
    }
    choice = post(server, "/v1/chat/completions", body)["choices"][0]
    assert choice["finish_reason"] == "tool_calls" or not one and choice["finish_reason"] == "length", choice
    content, calls = choice["message"]["content"] or "", [c["function"] for c in choice["message"]["tool_calls"]]
    lead, brace, rest = content.partition("{")
    assert not any(stop in lead for stop in body["stop"]), content
    if one and brace:  # not between tags
        assert len(lead) <= 256, content
        assert json.loads(brace + rest) == {"name": calls[0]["name"], "arguments": json.loads(calls[0]["arguments"])}
    return [(c["name"], json.loads(c["arguments"])) for c in calls]


def run_one(server, i, ways=(chat, responses, messages)):
    """None, or what was wrong."""
    names = list(SCHEMAS)
    way, named, strict, one = (
        ways[i % len(ways)],
        names[i // 3 % 4] if i // 12 % 2 else None,
        i // 24 % 2 == 1,
        i % 5 != 0,
    )
    case = (i, way.__name__, named or "required", "strict" if strict else "", "one" if one else "several")
    try:
        calls = way(server, i, QUESTIONS[i % len(QUESTIONS)], named, strict, one)
        assert calls and (len(calls) == 1 or not one), calls
        for name, arguments in calls:
            assert named in (None, name), calls
            jsonschema.Draft202012Validator(SCHEMAS[name]).validate(arguments)
        return case, [name for name, _ in calls], None
    except Exception as e:
        return case, [], "%s: %s" % (type(e).__name__, str(e)[:600])


@pytest.mark.parametrize(
    ("model", "ways", "runs"),
    [(m, w, n) for m in MODELS for w, n in (((chat, responses, messages), RUNS), ((shown,), (RUNS + 3) // 4))],
)
def test_every_forced_call_parses(model, ways, runs):
    server = Server("--threads", "2", "--kv-tokens", "65536", "--ctx", "4096", model=model)
    try:
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            done = list(pool.map(lambda i: run_one(server, i, ways), range(runs)))
        assert server.stats()["engine"]["accounting_errors"] == 0
    finally:
        server.stop()
    wrong = [(case, why) for case, _, why in done if why]
    called = Counter(name for _, names, _ in done for name in names)
    name = "%s, %s" % (model, " ".join(w.__name__ for w in ways))
    print("%s: %d of %d runs parse and follow their schemas; %s" % (name, runs - len(wrong), runs, dict(called)))
    assert not wrong, "%d wrong: %s" % (len(wrong), json.dumps(wrong[:12], indent=1))
    assert len(ways) < 3 or set(called) == set(SCHEMAS)
