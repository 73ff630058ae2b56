"""Every form of message, through /apply-template, /tokenize and the chat endpoint, on a ChatML model."""

import openai
import pytest

CHAT, APPLY = "/v1/chat/completions", "/apply-template"
USER = {"role": "user", "content": "hi"}


def turn(role, text):
    return "<|im_start|>%s\n%s<|im_end|>\n" % (role, text)


def apply(server, *messages, **fields):
    return server.ok(APPLY, dict(messages=list(messages), **fields))["prompt"]


def test_parts_are_joined_and_unknown_parts_are_named(server):
    parts = [
        {"type": "text", "text": "a"},
        {"type": "input_text", "text": "b"},
        "c",
        {"type": "refusal", "refusal": "d"},
    ]
    assert turn("user", "abcd") in apply(server, {"role": "user", "content": parts})
    for part in (
        {"type": "image_url", "image_url": {"url": "x"}},
        {"type": "input_audio", "input_audio": {}},
        {"type": "text"},
        {"text": "x"},
        5,
    ):
        for path in (APPLY, CHAT):
            status, body = server.post(
                path, {"messages": [USER, {"role": "user", "content": [{"type": "text", "text": "a"}, part]}]}
            )
            assert (
                status == 400
                and body["error"]["param"] == "messages"
                and "messages[1].content[1]" in body["error"]["message"]
            ), body


def test_the_developer_is_the_system(server):
    assert apply(server, {"role": "developer", "content": "Be brief."}, USER).startswith(turn("system", "Be brief."))


def test_a_late_system_message_stays_in_its_place(server):
    prompt = apply(
        server,
        {"role": "system", "content": "S"},
        USER,
        {"role": "assistant", "content": "A"},
        {"role": "system", "content": "late"},
        USER,
    )
    assert turn("assistant", "A") + turn("system", "late") + turn("user", "hi") in prompt


def test_tool_calls_and_results_in_both_spellings(server):
    def conversation(arguments, content):
        return [
            USER,
            {
                "role": "assistant",
                "content": content,
                "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}],
            },
            {"role": "tool", "tool_call_id": "call_1", "name": "f", "content": "21 C"},
        ]

    a = apply(server, *conversation('{"z": 1, "a": "é"}', None))
    assert (
        a
        == apply(server, *conversation({"z": 1, "a": "é"}, None))
        == apply(server, *conversation('{"z": 1, "a": "é"}', ""))
    )
    assert "21 C" in a and "None" not in a
    status, body = server.post(APPLY, {"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "x"}]}]})
    assert status == 400 and "tool_calls[0]" in body["error"]["message"]


def test_a_tool_may_have_nothing_to_say(server):
    def conversation(**result):
        call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        return [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", **result},
        ]

    for end in ([], [USER]):
        nothing = apply(server, *conversation(content=""), *end)
        assert (
            nothing == apply(server, *conversation(content=None), *end) == apply(server, *conversation(), *end)
            and "None" not in nothing
        )
    assert server.post(APPLY, {"messages": [{"role": "user", "content": None}]})[0] == 400


def test_a_last_assistant_message_is_continued(server):
    begun = {"role": "assistant", "content": "Sure, "}
    assert apply(server, USER, begun).endswith("<|im_start|>assistant\nSure, ")
    assert apply(server, USER, begun, continue_final_message=True).endswith("<|im_start|>assistant\nSure, ")
    assert apply(server, USER, begun, add_generation_prompt=True).endswith(
        turn("assistant", "Sure, ") + "<|im_start|>assistant\n"
    )
    assert apply(server, USER, begun, add_generation_prompt=False).endswith(turn("assistant", "Sure, "))
    assert apply(server, USER, begun, continue_final_message=False).endswith(
        turn("assistant", "Sure, ") + "<|im_start|>assistant\n"
    )
    assert apply(server, USER, {"role": "assistant", "content": ""}) == apply(server, USER)
    assert apply(server, USER, add_generation_prompt=False).endswith(turn("user", "hi"))
    status, body = server.post(
        APPLY, {"messages": [USER, begun], "continue_final_message": True, "add_generation_prompt": True}
    )
    assert status == 400 and body["error"]["param"] == "continue_final_message"
    for field in ("continue_final_message", "add_generation_prompt"):
        status, body = server.post(CHAT, {"messages": [USER], field: 3})
        assert status == 400 and body["error"]["param"] == field


def test_the_chat_endpoint_uses_the_same_prompt(server):
    for fields in (
        {"messages": [USER, {"role": "assistant", "content": "One, two,"}]},
        {"messages": [USER, {"role": "assistant", "content": "One"}], "add_generation_prompt": True},
        {
            "messages": [
                {"role": "developer", "content": "x"},
                {"role": "user", "content": [{"type": "text", "text": "y"}]},
            ]
        },
    ):
        count = server.ok("/tokenize", fields)["count"]
        assert server.ok(CHAT, dict(fields, max_tokens=1))["usage"]["prompt_tokens"] == count
        assert server.ok("/tokenize", {"content": server.ok(APPLY, fields)["prompt"]})["count"] == count


@pytest.mark.parametrize(
    "key", ["messages", "tools", "bos_token", "raise_exception", "loop", "add_generation_prompt", "__class__"]
)
def test_template_kwargs_cannot_replace_internals(server, key):
    for path in (APPLY, CHAT):
        status, body = server.post(path, {"messages": [USER], "chat_template_kwargs": {"mood": 1, key: []}})
        assert status == 400 and body["error"]["param"] == "chat_template_kwargs" and key in body["error"]["message"], (
            body
        )


def test_the_openai_package_sends_every_form(server):
    client = openai.OpenAI(base_url="http://127.0.0.1:%d/v1" % server.port, api_key="none")
    r = client.chat.completions.create(
        model="",
        max_tokens=2,
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
            {"role": "user", "content": [{"type": "text", "text": "Weather?"}], "name": "ann"},
            {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "21"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "It is"}]},
        ],
        extra_body={"chat_template_kwargs": {"x": 1}, "continue_final_message": True},
    )
    assert r.choices[0].message.role == "assistant" and r.usage.prompt_tokens > 10
