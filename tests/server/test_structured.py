"""Outputs held to a form: JSON schemas, regular expressions, choices, grammars and calls of tools, under the names of
all clients; what comes out is checked by others (json, re, jsonschema)."""

import json
import re

import jsonschema
import pytest
from anthropic import Anthropic
from openai import BadRequestError, OpenAI
from pydantic import BaseModel

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3},
        "sex": {"enum": ["f", "m", None]},
    },
    "required": ["name", "age", "tags", "sex"],
    "additionalProperties": False,
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "maxLength": 30},
                    "unit": {"enum": ["C", "F"]},
                    "days": {"type": "integer", "minimum": 1, "maximum": 9},
                },
                "required": ["city", "unit"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}},
    },
]


def ask(server, path="/v1/chat/completions", **more):
    body = {"messages": [{"role": "user", "content": "Tell me about Ada."}], "max_tokens": 120, "temperature": 1.0}
    return server.ok(path, body | more)


def text_of(answer):
    return answer["choices"][0]["message"]["content"]


def schema_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


def test_every_finished_output_is_valid(server):
    for seed in range(12):
        a = ask(server, response_format=schema_format(PERSON), seed=seed)
        assert a["choices"][0]["finish_reason"] == "stop", a
        jsonschema.validate(json.loads(text_of(a)), PERSON)
        assert a["timings"]["forced_n"] > 0


def test_an_output_closes_before_its_limit(server):
    for n in (34, 40, 48):
        a = ask(server, response_format=schema_format(PERSON), max_tokens=n, seed=n)
        assert a["usage"]["completion_tokens"] <= n
        jsonschema.validate(json.loads(text_of(a)), PERSON)


@pytest.mark.parametrize(
    "field, check",
    [
        ({"response_format": {"type": "json_object"}}, lambda t: isinstance(json.loads(t), dict)),
        ({"json_schema": PERSON}, lambda t: jsonschema.validate(json.loads(t), PERSON) is None),
        ({"guided_json": PERSON}, lambda t: jsonschema.validate(json.loads(t), PERSON) is None),
        ({"guided_json": json.dumps(PERSON)}, lambda t: jsonschema.validate(json.loads(t), PERSON) is None),
        ({"structured_outputs": {"json": PERSON}}, lambda t: jsonschema.validate(json.loads(t), PERSON) is None),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, lambda t: t in ("yes", "no")),
        ({"structured_outputs": {"regex": "[0-9]{3}-[a-f]+!"}}, lambda t: re.fullmatch("[0-9]{3}-[a-f]+!", t)),
        ({"regex": r"\d{4}-\d\d-\d\d"}, lambda t: re.fullmatch(r"\d{4}-\d\d-\d\d", t)),
        ({"guided_regex": "(a|bc){2,4}"}, lambda t: re.fullmatch("(a|bc){2,4}", t)),
        ({"guided_choice": ["red", "green", "blue"]}, lambda t: t in ("red", "green", "blue")),
        ({"choice": ["x"]}, lambda t: t == "x"),
        ({"grammar": 'root ::= "a" [0-9]+ ";" sep\nsep ::= "-"{3}'}, lambda t: re.fullmatch("a[0-9]+;---", t)),
        ({"ebnf": 'root ::= ("ab" | "c") root | "."'}, lambda t: re.fullmatch(r"(ab|c)*\.", t)),
    ],
)
def test_the_forms_of_all_clients(server, field, check):
    for stream in (False, True):
        body = {
            "messages": [{"role": "user", "content": "Go"}],
            "max_tokens": 150,
            "temperature": 1.0,
            "seed": 3,
        } | field
        if stream:
            chunks = server.stream("/v1/chat/completions", body)
            text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
            finish = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]][-1]
        else:
            a = server.ok("/v1/chat/completions", body)
            text, finish = text_of(a), a["choices"][0]["finish_reason"]
        assert finish == "stop" or "json_object" in str(field), (field, text)
        if finish == "stop":
            assert check(text), text


def test_completions_are_held_too(server):
    a = server.ok("/v1/completions", {"prompt": "The answer is", "max_tokens": 20, "regex": " (yes|no)\\."})
    assert a["choices"][0]["text"] in (" yes.", " no.")


def test_wrong_forms_are_told(server):
    for field, what in [
        ({"json_schema": {"type": "nope"}}, "#/type"),
        ({"json_schema": {"properties": {"a": {"$dynamicRef": "#b"}}}}, "$dynamicRef"),
        ({"regex": "(a"}, "regex"),
        ({"grammar": "root ::= missing"}, "missing"),
        ({"response_format": {"type": "xml"}}, "type"),
        ({"response_format": {"type": "json_schema"}}, "schema"),
        ({"regex": "a", "choice": ["b"]}, "already"),
    ]:
        status, answer = server.post(
            "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4} | field
        )
        assert status == 400, (field, answer)
        assert what in answer["error"]["message"], (field, answer)


def test_forced_calls_follow_their_schemas(server):
    schemas = {t["function"]["name"]: t["function"]["parameters"] for t in TOOLS}
    for seed in range(10):
        a = ask(server, tools=TOOLS, tool_choice="required", seed=seed, parallel_tool_calls=False)
        message = a["choices"][0]["message"]
        assert a["choices"][0]["finish_reason"] == "tool_calls" and len(message["tool_calls"]) == 1, a
        f = message["tool_calls"][0]["function"]
        jsonschema.validate(json.loads(f["arguments"]), schemas[f["name"]])
    choice = {"type": "function", "function": {"name": "get_weather"}}
    a = ask(server, tools=TOOLS, tool_choice=choice, seed=1)
    for call in a["choices"][0]["message"]["tool_calls"]:
        assert call["function"]["name"] == "get_weather"
        jsonschema.validate(json.loads(call["function"]["arguments"]), schemas["get_weather"])


def test_openai_parses(server):
    class Step(BaseModel):
        text: str
        ok: bool

    class Plan(BaseModel):
        title: str
        steps: list[Step]

    client = OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="x")
    done = client.chat.completions.parse(
        model="smollm2",
        messages=[{"role": "user", "content": "A plan of two steps"}],
        response_format=Plan,
        max_tokens=150,
        temperature=0,
    )
    assert isinstance(done.choices[0].message.parsed, Plan)
    answer = client.responses.parse(
        model="smollm2", input="A plan", text_format=Plan, max_output_tokens=150, temperature=0
    )
    assert isinstance(answer.output_parsed, Plan)
    with pytest.raises(BadRequestError):
        client.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": "x"}], response_format={"type": "json_schema"}
        )


def test_anthropic_tools_are_held(server):
    client = Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key="x")
    schema = TOOLS[0]["function"]["parameters"]
    m = client.messages.create(
        model="smollm2",
        max_tokens=120,
        messages=[{"role": "user", "content": "Weather in Oslo?"}],
        tools=[{"name": "get_weather", "description": "weather", "input_schema": schema}],
        tool_choice={"type": "tool", "name": "get_weather"},
    )
    calls = [b for b in m.content if b.type == "tool_use"]
    assert calls and m.stop_reason == "tool_use"
    jsonschema.validate(calls[0].input, schema)


def test_the_same_text_with_jumps_drafts_cache_and_without(server):
    body = {
        "messages": [{"role": "user", "content": "Describe a person as JSON."}],
        "max_tokens": 100,
        "temperature": 0,
        "response_format": schema_format(PERSON),
    }
    first = text_of(server.ok("/v1/chat/completions", body))
    for more in ({}, {"speculation": False}, {"cache_prompt": False}, {"logprobs": True, "top_logprobs": 3}):
        assert text_of(server.ok("/v1/chat/completions", body | more)) == first, more
    plain = server.ok("/v1/chat/completions", body | {"jump_ahead": False})
    assert "forced_n" not in plain["timings"]
    jsonschema.validate(json.loads(text_of(plain)), PERSON)


def test_log_probabilities_are_of_what_may_come(server):
    a = ask(server, choice=["x", "y"], logprobs=True, top_logprobs=5, max_tokens=8)
    first = a["choices"][0]["logprobs"]["content"][0]
    assert 0.99 < sum(2.718281828 ** t["logprob"] for t in first["top_logprobs"]) < 1.01
