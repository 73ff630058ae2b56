"""strict functions where the model may answer freely: what it begins as a call follows the function's schema, in whichever
form it writes calls (Qwen2.5-Coder: bare JSON and fences, hardly ever its own tags), in every API."""

import json
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pytest
from radish_server import Server


def closed(properties):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


# what no model writes by itself
SCHEMAS = {
    "get_weather": closed(
        {
            "city": {"type": "string", "pattern": "^[A-Z]{3}$"},
            "unit": {"enum": ["K", "R"]},
            "days": {"type": "integer", "minimum": 30, "maximum": 39},
        }
    ),
    "send_mail": closed(
        {
            "to": {"type": "array", "items": {"type": "integer", "minimum": 1000}, "minItems": 1, "maxItems": 2},
            "urgent": {"const": "maybe"},
            "body": {"type": "string", "maxLength": 12},
        }
    ),
}
TOLD = {"get_weather": "The weather of a city", "send_mail": "Sends a mail to people"}
QUESTIONS = [
    "What is the weather in Oslo tomorrow? Use the tool.",
    "Send a mail to Ada and Grace that dinner is at eight.",
    "Weather in Paris in Celsius for three days please.",
    "Mail bob@example.com: the meeting is cancelled, urgent!",
]


@pytest.fixture(scope="module")
def coder():
    s = Server("--threads", "2", "--kv-tokens", "32768", "--ctx", "4096", model="qwen2.5-coder-0.5b")
    yield s
    assert s.stats()["engine"]["accounting_errors"] == 0
    assert s.stop() == 0


def functions(strict):
    more = {"strict": True} if strict else {}
    return [{"name": n, "description": TOLD[n], "parameters": s, **more} for n, s in SCHEMAS.items()]


def post(server, path, body, i):
    status, headers, answer = server.request("POST", path, {"temperature": i % 2, "seed": i, **body}, timeout=600)
    assert status == 200, answer
    assert "x-radish-ignored-fields" not in headers
    return json.loads(answer)


def chat(server, i, question, strict):
    tools = [{"type": "function", "function": f} for f in functions(strict)]
    body = {"messages": [{"role": "user", "content": question}], "tools": tools, "max_tokens": 200}
    message = post(server, "/v1/chat/completions", body, i)["choices"][0]["message"]
    return [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or []]


def responses(server, i, question, strict):
    tools = [{"type": "function", **f} for f in functions(strict)]
    answer = post(server, "/v1/responses", {"input": question, "tools": tools, "max_output_tokens": 200}, i)
    return [(o["name"], o["arguments"]) for o in answer["output"] if o["type"] == "function_call"]


def messages(server, i, question, strict):
    tools = [{"input_schema": f.pop("parameters"), **f} for f in functions(strict)]
    body = {"messages": [{"role": "user", "content": question}], "tools": tools, "max_tokens": 200}
    return [
        (b["name"], json.dumps(b["input"]))
        for b in post(server, "/v1/messages", body, i)["content"]
        if b["type"] == "tool_use"
    ]


def calls_of(server, strict):
    ways = [(way, i, q) for i, q in enumerate(QUESTIONS) for way in (chat, responses, messages)]
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda w: (w[0].__name__, w[0](server, w[1], w[2], strict)), ways))
    found = [(api, *call) for api, calls in answers for call in calls]
    assert {api for api, *_ in found} == {"chat", "responses", "messages"}, found
    return found


def follows(name, arguments):
    try:
        arguments = json.loads(arguments)
    except ValueError:  # the model's own
        return False
    return jsonschema.Draft202012Validator(SCHEMAS[name]).is_valid(arguments)


def test_a_call_that_the_model_begins_follows_its_schema(coder):
    found = calls_of(coder, True)
    assert len(found) >= 9, found
    assert all(follows(name, arguments) for _, name, arguments in found), found


def test_a_function_that_is_not_strict_is_called_as_the_model_likes(coder):
    """Else the test above would say nothing."""
    assert not all(follows(name, arguments) for _, name, arguments in calls_of(coder, False))


def test_text_is_what_it_is_without_strict_functions(coder):
    """At temperature 0: JSON and code of all kinds, at the beginning of lines."""
    for question in (
        "Write a C function that adds two integers. Put each brace on a line of its own.",
        'Answer with a JSON object in a ```json fence: {"name": ..., "age": ...} of Ada Lovelace, aged 36.',
        "Why is the sky blue?",
    ):
        texts = []
        for strict in (False, True):
            tools = [{"type": "function", "function": f} for f in functions(strict)]
            body = {"messages": [{"role": "user", "content": question}], "tools": tools, "max_tokens": 60}
            message = post(coder, "/v1/chat/completions", body, 0)["choices"][0]["message"]
            texts.append((message["content"], bool(message.get("tool_calls"))))
        if not texts[0][1]:
            assert texts[0] == texts[1], question
