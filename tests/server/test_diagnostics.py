"""Cache diagnostics through the official packages: OpenAI's prompt_cache_diagnostics, Anthropic's cache_miss_reason."""

import anthropic
import openai
import pytest

CHAT = "/v1/chat/completions"
SYSTEM = "You are a clerk who counts boxes, and who never guesses a number that nobody has told you before. " * 3
ASK = "How many boxes are there, of which colours are they, and who has counted them, when, and why did nobody ask before?"
TOOL = {
    "type": "function",
    "name": "look",
    "description": "Looks into a box.",
    "parameters": {"type": "object", "properties": {}},
}
A_TOOL = {"name": "look", "description": "Looks into a box.", "input_schema": {"type": "object", "properties": {}}}


@pytest.fixture(scope="module")
def oai(server):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="-", max_retries=0)


@pytest.fixture(scope="module")
def claude(server):
    return anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key="-", max_retries=0)


def respond(oai, text, compare=None, **more):
    options = {"prompt_cache_options": {"comparison_response_id": compare}} if compare else {}
    given = {"model": "", "instructions": SYSTEM, "max_output_tokens": 2, "temperature": 0} | options | more
    return oai.responses.create(input=text, **given)


def test_responses_say_what_changed(server, oai):
    server.request("DELETE", "/v1/cache")
    first = respond(oai, ASK)
    assert first.prompt_cache_diagnostics is None
    same = respond(oai, ASK, first.id)
    assert same.prompt_cache_diagnostics.type == "cache_hit"
    d = respond(oai, ASK, first.id, tools=[TOOL]).prompt_cache_diagnostics
    assert (d.type, d.reason) == ("cache_miss", "tools_changed") and d.cache_missed_tokens > 20
    assert d.comparison_reusable_tokens == first.usage.input_tokens
    d = respond(oai, ASK, first.id, instructions="Now " + SYSTEM).prompt_cache_diagnostics
    assert (d.type, d.reason) == ("cache_miss", "input_changed")
    assert respond(oai, ASK, "resp_unknown").prompt_cache_diagnostics.type == "comparison_response_not_found"
    server.request("DELETE", "/v1/cache")
    d = respond(oai, ASK, first.id).prompt_cache_diagnostics
    assert d.type == "unavailable" and d.cause == "cleared"


def test_responses_streams_end_with_it(server, oai):
    first = respond(oai, "Streamed boxes?")
    events = list(respond(oai, "Streamed boxes?", first.id, stream=True))
    assert events[-1].type == "response.completed" or events[-1].type == "response.incomplete"
    assert events[-1].response.prompt_cache_diagnostics.type == "cache_hit"


def test_chat_completions_have_it_too(server):
    def ask(*texts, **more):
        roles = ["user", "assistant"] * len(texts)
        messages = [{"role": "system", "content": SYSTEM}] + [{"role": r, "content": t} for r, t in zip(roles, texts)]
        return server.ok(CHAT, {"messages": messages, "max_tokens": 2, "temperature": 0} | more)

    server.request("DELETE", "/v1/cache")
    long = "Boxes are red, blue, green, or of a colour that nobody has a name for, and each has a number. " * 2
    first = ask(long, "Yes.", "And now?")
    options = {"prompt_cache_options": {"comparison_response_id": first["id"]}}
    assert "prompt_cache_diagnostics" not in first
    assert ask(long, "Yes.", "And now?", "Two.", "Sure?", **options)["prompt_cache_diagnostics"] == {
        "type": "cache_hit"
    }
    d = ask("No. " + long, "Yes.", "And now?", **options)["prompt_cache_diagnostics"]
    assert (d["reason"], d["cause"]) == ("input_changed", "different")
    d = ask("Other. " + long, **options)["prompt_cache_diagnostics"]
    assert d["reason"] == "context_compacted"
    d = ask(long, "Yes.", "And now?", cache_salt="mine", **options)["prompt_cache_diagnostics"]
    assert d["reason"] == "prompt_cache_key_changed"
    assert server.post(CHAT, {"messages": [], "prompt_cache_options": {"comparison_response_id": 5}})[0] == 400


def test_messages_say_what_changed(server, claude):
    def ask(text=ASK, previous=None, **more):
        given = {"model": "", "max_tokens": 2, "system": SYSTEM, "messages": [{"role": "user", "content": text}]} | more
        return claude.messages.create(diagnostics={"previous_message_id": previous}, **given)

    server.request("DELETE", "/v1/cache")
    first = ask()
    assert first.diagnostics is None
    assert ask(previous=first.id).diagnostics is None
    r = ask(previous=first.id, tools=[A_TOOL]).diagnostics.cache_miss_reason
    assert r.type == "tools_changed" and r.cache_missed_input_tokens > 20
    assert ask(previous=first.id, system="Now " + SYSTEM).diagnostics.cache_miss_reason.type == "system_changed"
    long = "Boxes are red, blue, green, or of a colour that nobody has a name for, and each has a number. " * 2
    second = ask(long)
    assert ask("Not: " + long, previous=second.id).diagnostics.cache_miss_reason.type == "messages_changed"
    assert ask(previous="msg_gone").diagnostics.cache_miss_reason.type == "previous_message_not_found"
    server.request("DELETE", "/v1/cache")
    assert ask(previous=first.id).diagnostics.cache_miss_reason.type == "unavailable"
    with claude.messages.stream(
        model="",
        max_tokens=2,
        system=SYSTEM,
        diagnostics={"previous_message_id": first.id},
        messages=[{"role": "user", "content": ASK}],
    ) as stream:
        assert stream.get_final_message().diagnostics is None
    plain = claude.messages.create(model="", max_tokens=2, messages=[{"role": "user", "content": "Plain."}])
    assert plain.diagnostics is None
