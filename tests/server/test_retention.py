"""What clients say about how long a prompt is worth keeping reaches the tree (docs/cache.md, "What is kept longest")."""

import time

import pytest
from radish_server import Server

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
SYSTEM = "You are a clerk who counts boxes. Be short, be right, and never guess a number that nobody told you. " * 4
MARK, HOUR = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}


@pytest.fixture(scope="module")
def keeper():
    s = Server("--threads", "1", "--kv-tokens", "2048")
    yield s
    assert s.stats()["engine"]["accounting_errors"] == 0
    assert s.stop() == 0


@pytest.fixture
def kept(keeper):
    """Ends with the tokens that are kept as something since then: for an empty cache before."""
    keeper.request("DELETE", "/v1/cache")

    def get():
        tree = keeper.stats()["tree"]
        names = "plain", "short", "shared", "held", "long", "day"
        assert sum(tree["kept_" + n] for n in names) == tree["keys"]
        return {n: tree["kept_" + n] for n in names if tree["kept_" + n]}

    return get


def chat(text, **more):
    return {
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}],
        "max_tokens": 2,
    } | more


def test_cache_control_on_the_system_prompt_of_messages(keeper, kept):
    body = {
        "max_tokens": 2,
        "system": [{"type": "text", "text": SYSTEM, "cache_control": HOUR}],
        "messages": [{"role": "user", "content": "Count the boxes that I told you about in this long message."}],
    }
    usage = keeper.ok(MESSAGES, body)["usage"]
    k = kept()
    assert usage["cache_creation_input_tokens"] > 0
    assert 0 < k["plain"] < k["long"] < usage["cache_creation_input_tokens"]


def test_cache_control_on_a_message_is_for_the_prompt(keeper, kept):
    n = keeper.ok(
        MESSAGES,
        {
            "max_tokens": 2,
            "messages": [{"role": "user", "content": [{"type": "text", "text": SYSTEM, "cache_control": MARK}]}],
        },
    )["usage"]
    assert kept()["short"] == n["cache_creation_input_tokens"] + n["input_tokens"]


def test_cache_control_on_parts_and_tools_of_chat_completions(keeper, kept):
    body = chat("Hello.")
    body["messages"][1]["content"] = [{"type": "text", "text": "Hello.", "cache_control": HOUR}]
    n = keeper.ok(CHAT, body)["usage"]["prompt_tokens"]
    assert kept()["long"] == n
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}, "cache_control": MARK}
    keeper.request("DELETE", "/v1/cache")
    n = keeper.ok(CHAT, chat("Hello.", tools=[tool]))["usage"]["prompt_tokens"]
    assert n / 2 < kept()["short"] < n


def test_prompt_cache_retention_keeps_prompt_and_answer(keeper, kept):
    u = keeper.ok(CHAT, chat("How many?", prompt_cache_retention="24h"))["usage"]
    assert kept()["day"] >= u["prompt_tokens"]
    keeper.request("DELETE", "/v1/cache")
    keeper.ok(CHAT, chat("How many?", prompt_cache_retention="in_memory"))
    assert set(kept()) == {"plain"}
    keeper.request("DELETE", "/v1/cache")
    keeper.ok(RESPONSES, {"input": "How many?", "prompt_cache_options": {"ttl": "30m"}, "max_output_tokens": 2})
    assert set(kept()) == {"long"}


def test_wrong_times_are_refused(keeper):
    assert keeper.post(CHAT, chat("No.", prompt_cache_retention="7d"))[0] == 400
    assert keeper.post(CHAT, chat("No.", prompt_cache_options={"ttl": "soon"}))[0] == 400


def test_a_prompt_cache_key_keeps_what_its_group_shares(keeper, kept):
    keeper.ok(CHAT, chat("First.", prompt_cache_key="team"))
    assert "short" not in kept()
    keeper.ok(CHAT, chat("Second.", prompt_cache_key="team"))
    assert kept()["short"] > 50


def test_marked_prompts_outlive_a_flood(keeper, kept):
    keeper.ok(CHAT, chat("Marked.", cache_control=MARK))
    plain = chat("Plain.")
    plain["messages"][0]["content"] = "Something else. " + SYSTEM
    keeper.ok(CHAT, plain)
    for i in range(6):
        keeper.ok("/v1/completions", {"prompt": [1000 + i] + list(range(2000, 2500)), "max_tokens": 1})
    assert keeper.ok("/v1/cache/explain", chat("Marked."))["cause"] == "none"
    assert keeper.ok("/v1/cache/explain", plain)["cause"] == "evicted"


def test_warm_prompts_are_kept_a_day(tmp_path):
    lines = tmp_path / "warm.jsonl"
    lines.write_text('{"prompt": "Once upon a time there was a prompt that somebody wrote into a file."}\n')
    s = Server("--threads", "1", "--kv-tokens", "2048", "--warm", lines)
    for _ in range(200):
        if s.stats()["tree"]["kept_day"]:
            break
        time.sleep(0.05)
    assert s.stats()["tree"]["kept_day"] == s.stats()["tree"]["keys"] > 10
    assert s.stop() == 0


def test_a_chat_is_held_while_its_tool_runs():
    s = Server("--threads", "2", "--kv-tokens", "4096", model="qwen2.5-coder-1.5b")
    tool = {
        "type": "function",
        "function": {
            "name": "count_boxes",
            "description": "Counts the boxes in a room.",
            "parameters": {"type": "object", "properties": {"room": {"type": "string"}}},
        },
    }
    messages = [{"role": "user", "content": "How many boxes are in the kitchen? Use the tool."}]
    answer = s.ok(CHAT, {"messages": messages, "tools": [tool], "max_tokens": 100, "temperature": 0})
    message = answer["choices"][0]["message"]
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    for _ in range(100):
        if s.stats()["tree"]["kept_held"]:
            break
        time.sleep(0.02)
    assert s.stats()["tree"]["kept_held"] >= answer["usage"]["prompt_tokens"]
    messages += [message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "7"}]
    s.ok(CHAT, {"messages": messages, "tools": [tool], "max_tokens": 4, "temperature": 0})
    assert s.stats()["tree"]["kept_held"] == 0
    assert s.stop() == 0
