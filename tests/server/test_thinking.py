"""Thinking with the vocabulary and the template of Qwen 3, on a tiny random model whose file names <|endoftext|> as its end.

The family's files are not part of the tree (test_families.py); test_tools.py has the same parameters on a model that is.
"""

import openai
import pytest
from family_model import family_model
from radish_server import Server

ASK = [{"role": "user", "content": "What is 17 + 25?"}]
OPENED = ASK + [{"role": "assistant", "content": "<think>\nLet me add"}]  # a last assistant message is continued
CLOSED = "<think>\n\n</think>\n\n"
STEADY = {"temperature": 0, "repetition_penalty": 100, "ignore_eos": True}  # the same text each time, no token twice
OFF = [
    {"enable_thinking": False},
    {"reasoning_effort": "none"},
    {"thinking": {"type": "disabled"}},
    {"reasoning": {"enabled": False}},
    {"thinking_budget": 0},
    {"chat_template_kwargs": {"enable_thinking": False}},
]
ON = [
    {},
    {"enable_thinking": True},
    {"reasoning_effort": "high"},
    {"thinking": {"type": "enabled", "budget_tokens": 64}},
    {"thinking": {"type": "adaptive"}},
    {"reasoning": {"effort": "low"}},
]


@pytest.fixture(scope="module")
def qwen3():
    model = family_model("qwen3", eos="<|endoftext|>")
    if not model:
        pytest.skip("the files of qwen3 are absent: RADISH_TOKENIZERS names their folder")
    s = Server("--threads", "1", "--kv-tokens", "8192", model=model)
    yield s
    assert s.stop() == 0


@pytest.fixture(scope="module")
def ids(qwen3):
    return {
        t: qwen3.ok("/tokenize", {"content": t})["tokens"][0]
        for t in ("<|im_end|>", "<|endoftext|>", "<think>", "</think>")
    }


def chat(server, messages=ASK, **body):
    return server.ok("/v1/chat/completions", {"messages": messages, "max_tokens": 24} | STEADY | body)


def parts(r):
    m = r["choices"][0]["message"]
    assert m.get("reasoning") == m.get("reasoning_content")
    return m.get("reasoning_content"), m["content"], r["usage"]["completion_tokens_details"]["reasoning_tokens"]


@pytest.mark.parametrize("token", ["<|im_end|>", "<|endoftext|>"])
def test_every_end_of_turn_stops(qwen3, ids, token):
    r = chat(qwen3, logit_bias={str(ids[token]): 100}, ignore_eos=False, repetition_penalty=1)
    assert r["choices"][0]["finish_reason"] == "stop" and r["usage"]["completion_tokens"] == 0
    assert r["choices"][0]["message"]["content"] in ("", None)


@pytest.mark.parametrize("off", OFF)
def test_off_in_every_spelling(qwen3, off):
    prompt = qwen3.ok("/apply-template", {"messages": ASK} | off)["prompt"]
    assert prompt.endswith("<|im_start|>assistant\n" + CLOSED)
    r = chat(qwen3, **off)
    reasoning, content, n = parts(r)
    assert reasoning is None and content and n == 0
    assert r["usage"]["prompt_tokens"] == qwen3.ok("/tokenize", {"messages": ASK} | off)["count"]


@pytest.mark.parametrize("on", ON)
def test_on_in_every_spelling(qwen3, on):
    assert qwen3.ok("/apply-template", {"messages": ASK} | on)["prompt"].endswith("<|im_start|>assistant\n")


def test_what_the_prompt_opened_is_thinking_until_it_is_closed(qwen3, ids):
    r = chat(qwen3, OPENED)
    reasoning, content, n = parts(r)
    assert reasoning and content in ("", None) and n == r["usage"]["completion_tokens"] == 24
    reasoning, content, n = parts(
        chat(qwen3, OPENED, logit_bias={str(ids["</think>"]): 100}, max_tokens=3, repetition_penalty=1)
    )
    assert not reasoning and content and n <= 1


def test_the_models_own_tag_begins_it(qwen3, ids):
    """Every token is the opening tag: the first one opens, a budget closes, what follows is content."""
    reasoning, content, n = parts(chat(qwen3, thinking_budget=3, logit_bias={str(ids["<think>"]): 100}, max_tokens=14))
    assert reasoning and "</think>" not in reasoning + (content or "") and 3 <= n < 14


@pytest.mark.parametrize("budget", [1, 5, 11])
def test_a_budget_closes_it_cleanly(qwen3, budget):
    r = chat(qwen3, OPENED, thinking_budget=budget)
    reasoning, content, n = parts(r)
    assert reasoning and content and "think>" not in reasoning + content and not content.startswith("\n")
    assert budget <= n <= budget + 3 and r["usage"]["completion_tokens"] == 24
    free = parts(chat(qwen3, OPENED))[0]
    assert free.startswith(reasoning.rstrip("\n\ufffd"))  # as it thinks without a budget, until that is spent
    chunks = qwen3.stream(
        "/v1/chat/completions", {"messages": OPENED, "max_tokens": 24, "thinking_budget": budget} | STEADY
    )
    deltas = [c["choices"][0]["delta"] for c in chunks if c["choices"]]
    assert "".join(d.get("reasoning_content") or "" for d in deltas) == reasoning
    assert "".join(d.get("content") or "" for d in deltas) == content


def test_the_history_keeps_the_thinking_of_the_running_turn(qwen3):
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 17}'}}
    for field in ("reasoning_content", "reasoning"):
        turn = [
            {"role": "assistant", "content": "", field: "I add.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
        ]
        running = qwen3.ok("/apply-template", {"messages": ASK + turn})["prompt"]
        assert (
            "<think>\nI add.\n</think>" in running and '<tool_call>\n{"name": "add", "arguments": {"a": 17}}' in running
        )
        over = qwen3.ok("/apply-template", {"messages": ASK + turn + [{"role": "assistant", "content": "42"}] + ASK})[
            "prompt"
        ]
        assert "I add." not in over


def test_the_package_reads_both_fields(qwen3):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{qwen3.port}/v1", api_key="-", max_retries=0)
    extra = {"thinking_budget": 4} | STEADY
    message = (
        client.chat.completions.create(model="", messages=OPENED, max_tokens=16, extra_body=extra).choices[0].message
    )
    assert message.reasoning == message.reasoning_content and message.reasoning and message.content
    with client.chat.completions.create(
        model="", messages=OPENED, max_tokens=16, stream=True, extra_body=extra
    ) as stream:
        deltas = [c.choices[0].delta for c in stream]
    assert "".join(getattr(d, "reasoning_content", None) or "" for d in deltas) == message.reasoning
    assert "".join(d.content or "" for d in deltas) == message.content
