"""Outputs held to a form: JSON schemas, regular expressions, choices, grammars and calls of tools, under the names of
all clients; what comes out is checked by others (json, re, jsonschema)."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pytest
from anthropic import Anthropic
from ollama import Client
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


# A call as SGLang's and XGrammar's users write it, in the older shape and the newer one.
BEGIN, END = "<function=get_weather>", "</function>"
OLD_TAG = {
    "type": "structural_tag",
    "structures": [{"begin": BEGIN, "schema": TOOLS[0]["function"]["parameters"], "end": END}],
    "triggers": ["<function="],
}
CONTENT = {"type": "json_schema", "json_schema": TOOLS[0]["function"]["parameters"]}
NEW_TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<function="],
        "tags": [{"begin": BEGIN, "content": CONTENT, "end": END}],
        "at_least_one": True,
        "stop_after_first": True,
    },
}
SEQUENCE = {
    "type": "structural_tag",
    "format": {
        "type": "sequence",
        "elements": [
            {"type": "const_string", "value": "Weather: "},
            {"type": "tag", "begin": BEGIN, "content": CONTENT, "end": END},
            {
                "type": "or",
                "elements": [{"type": "regex", "pattern": " (ok|no)"}, {"type": "const_string", "value": "."}],
            },
        ],
    },
}


def the_call_in(text):
    before, _, rest = text.partition(BEGIN)
    inside, end, after = rest.partition(END)
    assert end and "<function=" not in before, text
    jsonschema.validate(json.loads(inside), TOOLS[0]["function"]["parameters"])
    return before, after


@pytest.mark.parametrize(
    "fields",
    [
        lambda tag: {"response_format": tag},
        lambda tag: {"structured_outputs": {"structural_tag": json.dumps(tag)}},
        lambda tag: {"structured_outputs": {"structural_tag": tag}},
        lambda tag: {"structural_tag": json.dumps(tag)},
    ],
    ids=["response_format", "vllm, a text", "vllm", "sglang"],
)
def test_structural_tags_hold_what_is_inside(server, fields):
    for seed in range(3):
        a = ask(server, **fields(NEW_TAG), seed=seed)
        assert a["choices"][0]["finish_reason"] == "stop", a
        assert the_call_in(text_of(a)) == ("", "")
        a = ask(server, **fields(SEQUENCE), seed=seed)
        before, after = the_call_in(text_of(a))
        assert before == "Weather: " and after in (" ok", " no", ".")


def test_the_older_tag_leaves_text_free_until_its_trigger(server):
    plain = {"messages": [{"role": "user", "content": "Count to five."}], "max_tokens": 24, "temperature": 0}
    free = text_of(server.ok("/v1/chat/completions", plain))
    assert text_of(server.ok("/v1/chat/completions", plain | {"response_format": OLD_TAG})) == free
    # A trigger that the prompt made likely: behind it there is no way but the tag.
    prompt = (
        "".join('Call: <function=get_weather>{"city": "%s", "unit": "C"}</function>\n' % c for c in "abc") + "Call:"
    )
    found = 0
    for seed in range(4):
        body = {"prompt": prompt, "max_tokens": 60, "temperature": 0.5, "seed": seed, "structural_tag": OLD_TAG}
        text = server.ok("/v1/completions", body)["choices"][0]["text"]
        assert text.count("<function=") == text.count(BEGIN)
        for inside in re.findall(f"{BEGIN}(.*?){END}", text):
            jsonschema.validate(json.loads(inside), TOOLS[0]["function"]["parameters"])
            found += 1
    assert found


def test_wrong_tags_are_told(server):
    for tag, what in [
        ({"type": "structural_tag"}, "structures"),
        (NEW_TAG | {"format": {"type": "nope"}}, "nope"),
        (OLD_TAG | {"triggers": ["<x"]}, "begins with none of the triggers"),
        (OLD_TAG | {"triggers": []}, "triggers"),
    ]:
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "response_format": tag}
        status, answer = server.post("/v1/chat/completions", body)
        assert status == 400 and what in answer["error"]["message"], answer


def test_ollama_holds_its_format(server):
    client = Client(host=f"http://127.0.0.1:{server.port}")
    options = {"num_predict": 120, "temperature": 1.0}
    for seed in range(3):
        chat = client.chat(
            model="smollm2",
            messages=[{"role": "user", "content": "Tell me about Ada."}],
            format=PERSON,
            options=options | {"seed": seed},
        )
        assert chat.done_reason == "stop"
        jsonschema.validate(json.loads(chat.message.content), PERSON)
        parts = client.generate(
            model="smollm2", prompt="Ada", format=PERSON, options=options | {"seed": seed}, stream=True
        )
        jsonschema.validate(json.loads("".join(p.response for p in parts)), PERSON)
        any_json = client.chat(
            model="smollm2",
            messages=[{"role": "user", "content": "A JSON object with one member"}],
            format="json",
            options=options | {"seed": seed},
        )
        if any_json.done_reason == "stop":
            assert isinstance(json.loads(any_json.message.content), dict)
        else:
            assert any_json.message.content.lstrip().startswith("{")


def test_anthropic_holds_its_format(server):
    client = Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key="x")
    m = client.messages.create(
        model="smollm2",
        max_tokens=120,
        messages=[{"role": "user", "content": "Tell me about Ada."}],
        output_config={"format": {"type": "json_schema", "schema": PERSON}},
    )
    jsonschema.validate(json.loads(m.content[0].text), PERSON)


def test_one_form_in_two_fields_is_one_form(server):
    """guidance's client of vLLM sends its grammar under the old name and the new one."""
    lark = 'start: "yes" | "no"'
    a = ask(server, guided_grammar=lark, structured_outputs={"grammar": lark}, guided_decoding_backend="guidance")
    assert text_of(a) in ("yes", "no")
    body = {"messages": [{"role": "user", "content": "x"}], "guided_grammar": lark, "guided_regex": "a"}
    assert server.post("/v1/chat/completions", body)[0] == 400


# Exactness: what is drawn depends on the request alone.
WORDS = ["Ada", "a tree", "the sea", "Rome", "a dog", "music"]


def person_body(i, temperature, **more):
    body = {
        "messages": [{"role": "user", "content": f"JSON about {WORDS[i]}."}],
        "max_tokens": 90,
        "temperature": temperature,
        "seed": i,
        "response_format": schema_format(PERSON),
    }
    return body | more


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_the_same_text_alone_cached_drafted_and_in_company(server, temperature):
    cold = {"cache_prompt": False, "speculation": False}
    alone = [text_of(server.ok("/v1/chat/completions", person_body(i, temperature, **cold))) for i in range(6)]

    def both(i):
        if i % 2:  # free text beside it, in the same batch
            free = {"prompt": f"{WORDS[i // 2]} is", "max_tokens": 60, "temperature": 1.0, "seed": i}
            return server.ok("/v1/completions", free)
        return server.ok("/v1/chat/completions", person_body(i // 2, temperature))

    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(both, range(12)))[::2]
    assert [text_of(a) for a in together] == alone
    again = [server.ok("/v1/chat/completions", person_body(i, temperature)) for i in range(6)]
    assert [text_of(a) for a in again] == alone
    assert all(a["usage"]["prompt_tokens_details"]["cached_tokens"] > 0 for a in again)


def test_drafts_respect_a_form_and_gain_from_it(server):
    """An answer that was given before is drafted from the tree; where the form differs by then, the draft is cut to it."""
    body = person_body(0, 0, messages=[{"role": "user", "content": "JSON about drafts."}])
    plain = server.ok("/v1/chat/completions", body | {"speculation": False})
    assert "draft_n" not in plain["timings"]
    drafted = server.ok("/v1/chat/completions", body)
    assert text_of(drafted) == text_of(plain)
    # Tokens that no draft or jump gave cost a step each: most of them came by drafts.
    accepted = drafted["timings"]["draft_n_accepted"]
    chosen = drafted["usage"]["completion_tokens"] - drafted["timings"]["forced_n"]
    assert accepted > chosen / 3, drafted["timings"]
    other = {
        **PERSON,
        "properties": {**PERSON["properties"], "age": {"type": "integer", "minimum": 200, "maximum": 210}},
    }
    cut = server.ok("/v1/chat/completions", body | {"response_format": schema_format(other)})
    jsonschema.validate(json.loads(text_of(cut)), other)
    alone = server.ok("/v1/chat/completions", body | {"response_format": schema_format(other), "speculation": False})
    assert text_of(alone) == text_of(cut)


def test_jumping_ahead_changes_nothing_where_the_model_spells_alike(server):
    """At temperature 0, with jumps and asking for each token: where the model's own tokens are the tokenizer's, one text."""
    alike = jumped = 0
    forms = [
        r"\d{4}-\d\d-\d\d",
        r"[a-z]{3,8}, [a-z]{3,8}, [a-z]{3,8}!",
        r"\d{1,3}(,\d{3}){3}",
        r"(red|blue) and (red|blue)",
        r"\(\d{3}\) \d{3}-\d{4}",
    ]
    for i, form in enumerate(forms):
        body = person_body(i, 0, response_format={"type": "text"}, regex=form)
        asked = server.ok("/v1/chat/completions", body | {"jump_ahead": False, "logprobs": True})
        spelt = [t["token"] for t in asked["choices"][0]["logprobs"]["content"]]
        pieces = server.ok("/tokenize", {"content": text_of(asked), "with_pieces": True})["tokens"]
        if spelt != [p["piece"] for p in pieces]:
            continue
        alike += 1
        ahead = server.ok("/v1/chat/completions", body)
        assert text_of(ahead) == text_of(asked)
        jumped += ahead["timings"].get("forced_n", 0)
    assert alike >= 2 and jumped >= 2, (alike, jumped)
