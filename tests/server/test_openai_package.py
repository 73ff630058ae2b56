"""The openai package's own calls and helpers, the exceptions it makes of our errors, and the bodies that other clients send.

Responses, messages, embeddings and Ollama's API have tests of their own; tool calls that must parse are in test_tools.py.
"""

import asyncio
import socket
import time

import openai
import pytest
import requests

HI = [{"role": "user", "content": "Say hello."}]
MODEL = "smollm2"


def client_of(port, **options):
    return openai.OpenAI(**{"base_url": f"http://127.0.0.1:{port}/v1", "api_key": "-", "max_retries": 0} | options)


@pytest.fixture(scope="module")
def client(server):
    return client_of(server.port)


def test_chat_of_several_choices(client):
    ask = {
        "model": MODEL,
        "messages": HI,
        "max_completion_tokens": 10,
        "temperature": 1.2,
        "n": 3,
        "seed": 5,
        "user": "u",
    }
    r = client.chat.completions.create(**ask)
    assert [c.index for c in r.choices] == [0, 1, 2] and r._request_id.startswith("req_")
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens
    texts = ["", "", ""]
    with client.chat.completions.create(**ask, stream=True) as stream:
        for chunk in stream:
            for c in chunk.choices:
                texts[c.index] += c.delta.content or ""
    assert texts == [c.message.content for c in r.choices]


def test_the_stream_helper_gathers_what_the_plain_call_returns(client):
    ask = {
        "model": MODEL,
        "messages": HI,
        "max_tokens": 80,
        "temperature": 0,
        "stop": [".", "?"],
    }  # a length limit would raise
    kinds, content = [], ""
    with client.chat.completions.stream(
        **ask, stream_options={"include_usage": True}, logprobs=True, top_logprobs=2
    ) as stream:
        for event in stream:
            kinds.append(event.type)
            if event.type == "content.delta":
                content += event.delta
                assert event.snapshot == content
        final = stream.get_final_completion()
    whole = client.chat.completions.create(**ask, logprobs=True, top_logprobs=2)
    assert final.choices[0].message.content == content == whole.choices[0].message.content
    assert (
        final.choices[0].finish_reason == whole.choices[0].finish_reason
        and final.usage.total_tokens == whole.usage.total_tokens
    )
    assert [t.model_dump() for t in final.choices[0].logprobs.content] == [
        t.model_dump() for t in whole.choices[0].logprobs.content
    ]
    assert {"chunk", "content.delta", "content.done", "logprobs.content.delta", "logprobs.content.done"} <= set(kinds)


def test_completions_of_lists_with_logprobs_and_echo(client):
    r = client.completions.create(
        model=MODEL, prompt=["One two", "A B C"], max_tokens=4, temperature=0, logprobs=2, echo=True, n=1
    )
    assert [c.index for c in r.choices] == [0, 1] and r.object == "text_completion"
    for c, prompt in zip(r.choices, ("One two", "A B C")):
        assert (
            c.text.startswith(prompt) and "".join(c.logprobs.tokens) == c.text and c.logprobs.token_logprobs[0] is None
        )
        assert len(c.logprobs.text_offset) == len(c.logprobs.top_logprobs) == len(c.logprobs.tokens)
    texts = ["", ""]
    for chunk in client.completions.create(
        model=MODEL, prompt=["One two", "A B C"], max_tokens=4, temperature=0, echo=True, stream=True
    ):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [c.text for c in r.choices]
    assert client.completions.create(model=MODEL, prompt=[5, 6, 7], max_tokens=1).usage.prompt_tokens == 3


def test_models_and_raw_answers(client):
    assert [m.id for m in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).object == "model"
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=HI, max_tokens=1, extra_headers={"X-Request-Id": "mine-7"}
    )
    assert raw.headers["x-request-id"] == "mine-7" and raw.parse().choices[0].finish_reason == "length"
    with client.chat.completions.with_streaming_response.create(
        model=MODEL, messages=HI, max_tokens=2, stream=True
    ) as r:
        lines = [line for line in r.iter_lines() if line]
    assert lines[-1] == "data: [DONE]" and all(line.startswith("data: {") for line in lines[:-1])


@pytest.mark.parametrize(
    "error,status,code,call",
    [
        (
            openai.BadRequestError,
            400,
            None,
            lambda c: c.chat.completions.create(model=MODEL, messages=HI, temperature=-1),
        ),
        (openai.BadRequestError, 400, None, lambda c: c.chat.completions.create(model=MODEL, messages=[])),
        (
            openai.BadRequestError,
            400,
            "context_length_exceeded",
            lambda c: c.completions.create(model=MODEL, prompt=[5] * 9000, max_tokens=1),
        ),
        (
            openai.BadRequestError,
            400,
            "context_length_exceeded",
            lambda c: c.completions.create(model=MODEL, prompt=[5] * 9000, stream=True),
        ),
        (openai.NotFoundError, 404, "model_not_found", lambda c: c.chat.completions.create(model="gpt-9", messages=HI)),
        (openai.NotFoundError, 404, "model_not_found", lambda c: c.models.retrieve("gpt-9")),
        (openai.NotFoundError, 404, None, lambda c: c.fine_tuning.jobs.list()),
    ],
)
def test_errors_are_the_packages_exceptions(client, error, status, code, call):
    with pytest.raises(error) as e:
        call(client)
    assert e.value.status_code == status and e.value.message and e.value.request_id
    assert e.value.body["type"] and (code is None or e.value.code == code)


def test_keys_queues_and_time(make_server):
    s = make_server("--api-key", "secret", "--max-running", "1", "--max-queue", "1", "--kv-tokens", "4096")
    with pytest.raises(openai.AuthenticationError):
        client_of(s.port).models.list()
    c = client_of(s.port, api_key="secret")
    long = {"model": MODEL, "prompt": [7, 8], "max_tokens": 3000, "extra_body": {"ignore_eos": True}}
    with pytest.raises(openai.APITimeoutError):
        c.with_options(timeout=0.3).completions.create(**long)
    headers = {"Authorization": "Bearer secret"}
    s.wait_until(lambda: s.get("/stats", headers)[1]["requests"]["decode"] == 0)  # its leaving was noticed
    streams = [c.completions.create(**long, stream=True)]
    next(iter(streams[0]))
    streams.append(c.completions.create(**long, stream=True, timeout=60))
    with pytest.raises(openai.RateLimitError) as e:
        for _ in range(4):
            streams.append(c.completions.create(**long, stream=True))
    assert e.value.response.headers["retry-after"] == "1"
    for stream in streams:
        stream.close()
    r = c.with_options(max_retries=4).completions.create(
        model=MODEL, prompt=[7], max_tokens=1
    )  # waits out what is left of the queue
    assert r.usage.completion_tokens == 1


def test_nobody_there():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    start = time.monotonic()
    with pytest.raises(openai.APIConnectionError):
        client_of(port, max_retries=1).models.list()
    assert time.monotonic() - start < 60


def test_async_streams_beside_each_other_are_their_plain_answers(server):
    asks = [{"model": MODEL, "prompt": f"Number {i}:", "max_tokens": 10, "temperature": 1, "seed": i} for i in range(8)]

    async def streamed(c, ask):
        return "".join([chunk.choices[0].text async for chunk in await c.completions.create(**ask, stream=True)])

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="-", max_retries=0) as c:
            together = await asyncio.gather(*(streamed(c, a) for a in asks))
            return together, [(await c.completions.create(**a)).choices[0].text for a in asks]

    together, alone = asyncio.run(all_of_them())
    assert together == alone and len(set(alone)) > 4


# ---- bodies of other clients ----

TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Reads",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}},
            "required": ["path"],
            "additionalProperties": False,
        },
    },
}
OPEN_WEBUI = {
    "stream": True,
    "model": MODEL,
    "messages": [{"role": "system", "content": "Be brief."}, *HI],
    "stream_options": {"include_usage": True},
    "params": {},
    "tool_servers": [],
    "features": {"voice": False, "image_generation": False, "code_interpreter": False, "web_search": False},
    "variables": {"{{USER_NAME}}": "u", "{{CURRENT_DATE}}": "2026-11-21"},
    "model_item": {"id": MODEL, "object": "model", "owned_by": "radish"},
    "session_id": "s",
    "chat_id": "c",
    "id": "m",
    "background_tasks": {"title_generation": True, "tags_generation": True},
    "max_tokens": 6,
}
TITLE = {
    "model": MODEL,
    "stream": False,
    "max_completion_tokens": 8,
    "metadata": {"task": "title_generation", "task_body": {}, "chat_id": None},
    "messages": [
        {
            "role": "user",
            "content": "### Task:\nGenerate a title.\n### Chat History:\n<chat_history>USER: hi</chat_history>",
        }
    ],
}
AGENT = {
    "model": MODEL,
    "stream": True,
    "temperature": 0.2,
    "top_p": 1,
    "max_tokens": 6,
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [TOOL],
    "stream_options": {"include_usage": True},
    "store": False,
    "service_tier": "auto",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "safety_identifier": "x",
    "verbosity": "low",
    "modalities": ["text"],
    "metadata": {"a": "b"},
    "prediction": None,
    "reasoning_effort": "low",
    "web_search_options": None,
    "audio": None,
    "functions": None,
    "function_call": None,
    "logit_bias": None,
    "stop": None,
    "seed": None,
    "messages": [
        {
            "role": "system",
            "content": [{"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}}],
        },
        {"role": "user", "content": [{"type": "text", "text": "Read a.c"}], "name": "me"},
        {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "audio": None,
            "function_call": None,
            "annotations": [],
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "index": 0,
                    "function": {"name": "read_file", "arguments": '{"path":"a.c"}'},
                }
            ],
        },
        {
            "role": "tool",
            "tool_call_id": "call_1",
            "name": "read_file",
            "content": [{"type": "text", "text": "int x;"}],
        },
        {"role": "user", "content": "And b.c?"},
    ],
}
LEGACY = {
    "model": MODEL,
    "prompt": "def f(",
    "max_tokens": 4,
    "temperature": 0,
    "stop": ["\n\n"],
    "stream": False,
    "best_of": 1,
    "suffix": None,
    "logit_bias": {},
    "user": "",
    "n_predict": 4,
    "cache_prompt": True,
    "id_slot": -1,
    "samplers": None,
}


@pytest.mark.parametrize("body", [OPEN_WEBUI, AGENT], ids=["open-webui", "agent"])
def test_streams_as_chat_clients_ask_for_them(server, body):
    chunks = server.stream("/v1/chat/completions", body)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant" and chunks[-1]["usage"]["prompt_tokens"] > 5
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]][-1] in ("stop", "length", "tool_calls")


def test_plain_bodies_of_clients(server):
    assert server.ok("/v1/chat/completions", TITLE)["choices"][0]["message"]["role"] == "assistant"
    assert server.ok("/v1/completions", LEGACY)["usage"]["completion_tokens"] <= 4
    listing = requests.get(
        f"http://127.0.0.1:{server.port}/v1/models",
        headers={"Authorization": "Bearer sk-none", "User-Agent": "Python/3.11 aiohttp"},
    )
    assert (
        listing.status_code == 200 and listing.json()["object"] == "list" and listing.json()["data"][0]["id"] == MODEL
    )
