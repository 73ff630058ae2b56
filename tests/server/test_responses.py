"""The Responses API: the openai package against the server, the exact events, what is kept, followed, cancelled, refused."""

import contextlib
import json
import socket
import time

import openai
import pytest
from radish_server import JSON, ROOT, Server

RESPONSES = "/v1/responses"
GREEDY = {"temperature": 0}
LONG = {"input": "Count up.", "max_output_tokens": 3000, "ignore_eos": True}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city",
    "strict": False,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ASK = "What is the weather in Paris?"
NAMED = {"type": "function", "name": "get_weather"}


def client(s):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def coder():
    s = Server("--threads", "2", "--kv-tokens", "16384", model="qwen2.5-coder-0.5b")
    yield client(s)
    assert s.stats()["engine"]["accounting_errors"] == 0
    assert s.stop() == 0


@pytest.fixture(scope="module")
def thinker():
    s = Server(
        "--threads",
        "2",
        "--kv-tokens",
        "16384",
        "--chat-template",
        str(ROOT / "tests/server/think.jinja"),
        model="qwen2.5-coder-0.5b",
    )
    yield client(s)
    assert s.stop() == 0


def frames(raw):
    """The data of a stream; each one's type is its event, and they are numbered."""
    out = []
    for frame in raw.decode().split("\n\n")[:-1]:
        if frame.startswith(":"):
            continue
        name, data = frame.split("\n")
        out.append(json.loads(data.removeprefix("data: ")))
        assert name == "event: " + out[-1]["type"]
    return out


def events(server, body):
    status, headers, raw = server.request(
        "POST", RESPONSES, {"input": "Say hello.", "max_output_tokens": 8, "stream": True} | GREEDY | body
    )
    assert status == 200 and headers["content-type"] == "text/event-stream", raw
    out = frames(raw)
    assert [e["sequence_number"] for e in out] == list(range(len(out)))
    return out


def names(got):
    """Types without "response.", runs of deltas once."""
    out = []
    for e in got:
        name = e["type"].removeprefix("response.")
        if not (out and out[-1] == name and name.endswith(".delta")):
            out.append(name)
    return out


@contextlib.contextmanager
def reading(server, body):
    """(connection's response, the id) of a stream that was begun."""
    with contextlib.closing(server.connect()) as c:
        c.request("POST", RESPONSES, json.dumps(body | {"stream": True}), JSON)
        r = c.getresponse()
        assert r.status == 200
        r.readline()
        yield r, json.loads(r.readline().removeprefix(b"data: "))["response"]["id"]


def delete(server, rid):
    status, _, body = server.request("DELETE", f"{RESPONSES}/{rid}")
    return status, json.loads(body)


def test_shape(server):
    ask = {
        "model": "smollm2",
        "input": "Say hello.",
        "instructions": "Be brief.",
        "max_output_tokens": 6,
        "metadata": {"a": "b"},
        "user": "u",
        "truncation": "auto",
        "include": ["reasoning.encrypted_content"],
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "prompt_cache_key": "k",
        "service_tier": "auto",
        "unknown": {"x": 1},
        "client_metadata": {"y": 2},
        "stream_options": {"include_obfuscation": False},
    }
    r = server.ok(RESPONSES, ask | GREEDY)
    assert (
        r["id"].startswith("resp_")
        and r["object"] == "response"
        and r["model"] == "smollm2"
        and r["created_at"] <= time.time()
    )
    assert (
        r["status"] == "incomplete"
        and r["incomplete_details"] == {"reason": "max_output_tokens"}
        and r["error"] is None
    )
    assert r["completed_at"] is None and r["background"] is False
    assert [(i["type"], i["role"], i["status"], [p["type"] for p in i["content"]]) for i in r["output"]] == [
        ("message", "assistant", "incomplete", ["output_text"])
    ]
    assert r["output"][0]["id"].startswith("msg_") and r["output"][0]["content"][0]["annotations"] == []
    echoed = {
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "user": "u",
        "max_output_tokens": 6,
        "temperature": 0,
        "top_p": 1,
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": True,
        "text": ask["text"],
        "prompt_cache_key": "k",
        "reasoning": {"effort": None, "summary": None},
        "truncation": "auto",
    }
    assert {k: r[k] for k in echoed} == echoed
    u = r["usage"]
    assert (
        u["output_tokens"] == 6
        and u["total_tokens"] == u["input_tokens"] + 6
        and u["output_tokens_details"] == {"reasoning_tokens": 0}
    )
    again = server.ok(RESPONSES, ask | GREEDY)
    assert again["usage"]["input_tokens_details"]["cached_tokens"] >= u["input_tokens"] - 1
    for usage in (u, again["usage"]):
        assert (
            sum(usage["input_tokens_details"][k] for k in ("cached_tokens", "cache_write_tokens"))
            == usage["input_tokens"]
        )
    assert server.get(f"{RESPONSES}/{r['id']}") == (200, r)


def test_stream_events_are_the_response(server):
    whole = server.ok(RESPONSES, {"input": "Say hello.", "max_output_tokens": 8} | GREEDY)
    got = events(server, {})
    assert names(got) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "incomplete",
    ]
    first, added, last = got[0]["response"], got[2]["item"], got[-1]["response"]
    assert (
        first["status"] == "in_progress"
        and first["output"] == []
        and first["usage"] is None
        and got[1]["response"] == first
    )
    assert added["status"] == "in_progress" and added["content"] == [] and added["role"] == "assistant"
    deltas = [e for e in got if e["type"] == "response.output_text.delta"]
    text = whole["output"][0]["content"][0]["text"]
    assert "".join(e["delta"] for e in deltas) == text == got[-4]["text"] == got[-3]["part"]["text"]
    assert all(
        (e["item_id"], e["output_index"], e["content_index"]) == (added["id"], 0, 0)
        for e in deltas + [got[3], got[-4], got[-3]]
    )
    assert last["output"] == [got[-2]["item"]] and last["id"] == first["id"] and last["usage"]["output_tokens"] == 8
    assert server.get(f"{RESPONSES}/{last['id']}") == (200, last)


def test_the_package_streams(server):
    c = client(server)
    with c.responses.stream(model="", input="Say hello.", max_output_tokens=60, extra_body=GREEDY) as s:
        text = "".join(e.delta for e in s if e.type == "response.output_text.delta")
        final = s.get_final_response()
    assert final.status == "completed" and final.output_text == text and final.completed_at >= final.created_at
    assert c.responses.retrieve(final.id).output_text == text


def test_every_item_reaches_the_template(server):
    items = [
        {"role": "user", "content": "One"},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Dev"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "zzz"},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "Hm"}],
            "encrypted_content": None,
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Tw", "annotations": []}, {"type": "output_text", "text": "o"}],
        },
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city":"Bern"}'},
        {
            "type": "function_call",
            "call_id": "c2",
            "name": "get_weather",
            "arguments": "{}",
            "id": None,
            "status": None,
        },
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "function_call_output", "call_id": "c1", "output": "Rain"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "Sun"}]},
        {"type": "custom_tool_call", "call_id": "c3", "name": "apply_patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "c3", "output": "Done"},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "Th"}, {"type": "input_text", "text": "ree"}],
        },
    ]

    def call(number, name, arguments):
        return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}

    chat = [
        {"role": "system", "content": "Sys"},
        {"role": "user", "content": "One"},
        {"role": "system", "content": "Dev"},
        {
            "role": "assistant",
            "content": "Two",
            "reasoning_content": "Hm",
            "tool_calls": [call("c1", "get_weather", '{"city":"Bern"}'), call("c2", "get_weather", "{}")],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "Rain"},
        {"role": "tool", "tool_call_id": "c2", "content": "Sun"},
        {"role": "assistant", "content": "", "tool_calls": [call("c3", "apply_patch", '{"input":"*** Begin"}')]},
        {"role": "tool", "tool_call_id": "c3", "content": "Done"},
        {"role": "user", "content": "Three"},
    ]
    function = {
        "type": "function",
        "function": {k: WEATHER[k] for k in ("name", "description", "strict", "parameters")},
    }
    r = server.ok(
        RESPONSES,
        {
            "instructions": "Sys",
            "input": items,
            "max_output_tokens": 1,
            "tools": [
                WEATHER,
                {"type": "web_search"},
                {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
                {"type": "local_shell"},
            ],
        },
    )
    assert r["usage"]["input_tokens"] == server.ok("/tokenize", {"messages": chat, "tools": [function]})["count"]
    assert [t["type"] for t in r["tools"]] == ["function", "web_search", "custom", "local_shell"]


def test_previous_response(server):
    c = client(server)
    first = c.responses.create(
        model="", input="My name is Ada.", max_output_tokens=8, instructions="Old.", extra_body=GREEDY
    )
    second = c.responses.create(
        model="", input="Who am I?", previous_response_id=first.id, max_output_tokens=8, extra_body=GREEDY
    )
    said = {"role": "assistant", "content": first.output_text}
    chat = [{"role": "user", "content": "My name is Ada."}, said, {"role": "user", "content": "Who am I?"}]
    assert (
        second.usage.input_tokens == server.ok("/tokenize", {"messages": chat})["count"]
    )  # old instructions are not carried over
    assert second.previous_response_id == first.id
    assert delete(server, first.id) == (200, {"id": first.id, "object": "response", "deleted": True})
    third = c.responses.create(model="", input="And now?", previous_response_id=second.id, max_output_tokens=1)
    chat += [{"role": "assistant", "content": second.output_text}, {"role": "user", "content": "And now?"}]
    assert third.usage.input_tokens == server.ok("/tokenize", {"messages": chat})["count"]  # although the first is gone
    with pytest.raises(openai.NotFoundError) as e:
        c.responses.create(model="", input="x", previous_response_id=first.id)
    assert e.value.code == "previous_response_not_found" and e.value.param == "previous_response_id"
    by_reference = c.responses.create(
        model="",
        input=[
            {"role": "user", "content": "My name is Ada."},
            said,
            {"role": "user", "content": "Who am I?"},
            {"type": "item_reference", "id": second.output[0].id},
            {"role": "user", "content": "And now?"},
        ],
        max_output_tokens=1,
    )
    assert by_reference.usage.input_tokens == third.usage.input_tokens


def test_input_items(server):
    c = client(server)
    first = c.responses.create(
        model="", input=[{"role": "user", "content": f"item {i}"} for i in range(5)], max_output_tokens=1
    )
    second = c.responses.create(model="", input="last", previous_response_id=first.id, max_output_tokens=1)
    texts = [
        i.content[0].text for i in c.responses.input_items.list(second.id, order="asc", limit=2)
    ]  # the package goes through the pages
    assert texts == [f"item {i}" for i in range(5)] + [first.output_text] + ["last"]
    page = c.responses.input_items.list(second.id, limit=3)
    assert [i.content[0].text for i in page.data] == ["last", first.output_text, "item 4"] and page.has_more
    assert page.first_id == page.data[0].id and page.last_id == page.data[-1].id
    for bad in ("order=up", "limit=0", "limit=101", "limit=x"):
        status, answer = server.get(f"{RESPONSES}/{second.id}/input_items?{bad}")
        assert status == 400 and answer["error"]["param"] == bad.split("=")[0]


def test_store_false_keeps_nothing(server):
    r = client(server).responses.create(model="", input="x", store=False, max_output_tokens=1)
    assert r.store is False
    for call in (
        client(server).responses.retrieve,
        client(server).responses.delete,
        client(server).responses.cancel,
        client(server).responses.input_items.list,
    ):
        with pytest.raises(openai.NotFoundError):
            call(r.id)


def test_tools_round_trip(coder):
    ask = {"model": "", "max_output_tokens": 80, "tools": [WEATHER, {"type": "web_search"}], "extra_body": GREEDY}
    r = coder.responses.create(input=ASK, tool_choice="required", **ask)
    call = r.output[-1]
    assert call.type == "function_call" and call.name == "get_weather" and "Paris" in json.loads(call.arguments)["city"]
    assert call.call_id and call.id.startswith("fc_") and r.status == "completed" and call.status == "completed"
    with coder.responses.stream(input=ASK, tool_choice=NAMED, **ask) as s:
        got = list(s)
        final = s.get_final_response()
    assert names([e.to_dict() for e in got]) == [
        "created",
        "in_progress",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    pieces = [e for e in got if e.type == "response.function_call_arguments.delta"]
    assert (
        "".join(e.delta for e in pieces) == got[-3].arguments == final.output[-1].arguments == call.arguments
        and got[-3].name == "get_weather"
    )
    assert (
        got[2].item.arguments == ""
        and got[2].item.call_id == final.output[-1].call_id
        and pieces[0].item_id == got[2].item.id
    )
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "17 degrees"}
    kept = coder.responses.create(input=[result], previous_response_id=r.id, tool_choice="none", **ask)
    sent = coder.responses.create(
        input=[{"role": "user", "content": ASK}, *r.output, result], tool_choice="none", **ask
    )
    assert (
        kept.output[0].type == "message"
        and kept.output_text == sent.output_text
        and kept.usage.input_tokens == sent.usage.input_tokens
    )
    cut = coder.responses.create(input=ASK, tool_choice="required", **ask | {"max_output_tokens": 12})
    assert (
        cut.status == "incomplete" and cut.output[-1].type == "function_call" and cut.output[-1].status == "incomplete"
    )


def test_counts_are_what_the_answer_says_of_its_prompt(coder):
    tool = {"tools": [WEATHER], "tool_choice": NAMED}
    r = coder.responses.create(
        model="", input=ASK, instructions="Be brief.", max_output_tokens=20, extra_body=GREEDY, **tool
    )
    n = coder.responses.input_tokens.count(input=ASK, instructions="Be brief.", **tool)
    assert n.input_tokens == r.usage.input_tokens and n.object == "response.input_tokens"
    more = {"previous_response_id": r.id, "input": "Thanks."}
    assert (
        coder.responses.input_tokens.count(**more).input_tokens
        == coder.responses.create(model="", max_output_tokens=1, **more).usage.input_tokens
    )
    with pytest.raises(openai.NotFoundError) as e:
        coder.responses.input_tokens.count(previous_response_id="resp_gone", input="Hi")
    assert e.value.param == "previous_response_id"


def test_reasoning_is_an_item_before_the_message(thinker):
    ask = {
        "model": "",
        "max_output_tokens": 40,
        "input": "What is 17 + 25?",
        "extra_body": GREEDY | {"thinking_budget": 5},
    }
    r = thinker.responses.create(reasoning={"effort": "high", "summary": "auto"}, **ask)
    assert (
        [i.type for i in r.output] == ["reasoning", "message"]
        and r.output[0].content[0].text
        and r.output[0].summary == []
    )
    assert 0 < r.usage.output_tokens_details.reasoning_tokens < r.usage.output_tokens and r.reasoning.effort == "high"
    with thinker.responses.stream(reasoning={"effort": "high"}, **ask) as s:
        got = [e.to_dict() for e in s]
    assert names(got)[:8] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
    ]
    assert names(got)[8:12] == ["output_item.added", "content_part.added", "output_text.delta", "output_text.done"]
    assert (
        "".join(e["delta"] for e in got if e["type"] == "response.reasoning_text.delta") == r.output[0].content[0].text
    )
    assert [e["output_index"] for e in got if e["type"] == "response.output_item.done"] == [0, 1]
    assert [i.type for i in thinker.responses.create(reasoning={"effort": "none"}, **ask).output] == ["message"]
    again = thinker.responses.create(
        **ask | {"input": [{"role": "user", "content": ask["input"]}, *r.output, {"role": "user", "content": "Sure?"}]}
    )
    assert again.output_text


def test_agent_traffic(coder):
    """A request as Codex sends it: long instructions, many tools of all types, items without id and status, store false."""

    def tool(i):
        return {
            "type": "function",
            "name": f"tool_{i}",
            "description": "Does a thing.",
            "strict": False,
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "array", "items": {"type": "string"}}},
                "additionalProperties": False,
            },
        }

    body = {
        "model": "",
        "instructions": "You are a coding agent.",
        "store": False,
        "stream": True,
        "parallel_tool_calls": False,
        "tools": [tool(i) for i in range(6)]
        + [
            {"type": "local_shell"},
            {"type": "web_search", "external_web_access": False},
            {
                "type": "custom",
                "name": "apply_patch",
                "description": "x",
                "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"},
            },
            {"type": "namespace", "name": "mcp", "tools": []},
        ],
        "tool_choice": "auto",
        "reasoning": {"effort": "medium", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0195",
        "text": {"verbosity": "medium"},
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>"}]},
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "<environment_context>"},
                    {"type": "input_text", "text": "ls"},
                ],
            },
            {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "gAAAA"},
            {"type": "function_call", "name": "tool_1", "arguments": '{"command":["ls"]}', "call_id": "call_x"},
            {
                "type": "function_call_output",
                "call_id": "call_x",
                "output": '{"output":"a.txt","metadata":{"exit_code":0}}',
            },
        ],
        "max_output_tokens": 12,
        "temperature": 0,
    }
    got = list(
        coder.responses.create(
            **body,
            extra_body={"client_metadata": {"a": "b"}},
            extra_headers={"OpenAI-Beta": "responses=experimental", "session_id": "s", "originator": "codex_cli_rs"},
        )
    )
    assert (
        got[0].type == "response.created"
        and got[-1].type in ("response.completed", "response.incomplete")
        and got[-1].response.usage.output_tokens <= 12
    )
    assert len(got[-1].response.tools) == 10


# ---- in the background ----


def test_background_is_polled(server):
    c = client(server)
    r = c.responses.create(model="", input="Say hello.", background=True, max_output_tokens=8, extra_body=GREEDY)
    assert r.status == "queued" and r.background and r.output == [] and r.usage is None
    server.wait_until(lambda: c.responses.retrieve(r.id).status not in ("queued", "in_progress"))
    done = c.responses.retrieve(r.id)
    assert (
        done.status == "incomplete"
        and done.output_text
        == c.responses.create(model="", input="Say hello.", max_output_tokens=8, extra_body=GREEDY).output_text
    )
    assert c.responses.cancel(r.id).status == "incomplete"  # too late: as it is
    status, answer = server.get(f"{RESPONSES}/{r.id}?stream=true")
    assert status == 400 and answer["error"]["param"] == "stream"
    assert delete(server, r.id)[0] == 200 and server.get(f"{RESPONSES}/{r.id}")[0] == 404


def test_background_stream_goes_on_without_its_client(server):
    ask = {"input": "Say hello.", "max_output_tokens": 300, "background": True, "ignore_eos": True} | GREEDY
    with reading(server, ask) as (_, rid):
        pass  # gone after the first event
    status, _, raw = server.request("GET", f"{RESPONSES}/{rid}?stream=true")
    got = frames(raw)
    assert status == 200 and [e["sequence_number"] for e in got] == list(range(len(got)))
    assert names(got) == [
        "created",
        "queued",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "incomplete",
    ]
    assert (
        server.get(f"{RESPONSES}/{rid}") == (200, got[-1]["response"])
        and got[-1]["response"]["usage"]["output_tokens"] == 300
    )
    assert server.request("HEAD", f"{RESPONSES}/{rid}?stream=true")[::2] == (200, b"")
    rest = frames(server.request("GET", f"{RESPONSES}/{rid}?stream=true&starting_after=5")[2])
    assert rest == got[6:]
    assert frames(server.request("GET", f"{RESPONSES}/{rid}?stream=true&starting_after=99999")[2]) == []
    for bad in ("x", "-1", ""):
        status, answer = server.get(f"{RESPONSES}/{rid}?stream=true&starting_after={bad}")
        assert status == 400 and answer["error"]["param"] == "starting_after", bad


def test_the_package_resumes_a_background_stream(server):
    c = client(server)
    with c.responses.create(
        model="",
        input="Count.",
        background=True,
        stream=True,
        max_output_tokens=40,
        extra_body=GREEDY | {"ignore_eos": True},
    ) as s:
        for e in s:
            if e.type == "response.created":
                rid = e.response.id
            if e.sequence_number == 8:
                break
    later = list(c.responses.retrieve(rid, stream=True, starting_after=8))
    assert later[0].sequence_number == 9 and later[-1].type == "response.incomplete"


@pytest.mark.parametrize("how", ["cancel", "delete"])
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_background_stops(server, how, stream):
    if stream:
        with reading(server, LONG | {"background": True}) as (_, rid):
            pass
    else:
        rid = server.ok(RESPONSES, LONG | {"background": True})["id"]
    server.wait_until(lambda: server.get(f"{RESPONSES}/{rid}")[1]["status"] == "in_progress")
    before = server.stats()["requests"]["cancelled"]
    if how == "cancel":
        status, r = server.post(f"{RESPONSES}/{rid}/cancel", {})
        assert status == 200 and r["status"] == "cancelled" and server.get(f"{RESPONSES}/{rid}") == (200, r)
        assert client(server).responses.cancel(rid).status == "cancelled"
    else:
        assert delete(server, rid)[0] == 200 and server.get(f"{RESPONSES}/{rid}")[0] == 404
    server.wait_until(lambda: server.stats()["requests"]["cancelled"] == before + 1)
    server.wait_idle()


@pytest.mark.parametrize("background", [False, True], ids=["foreground", "background"])
def test_cancelling_ends_the_stream(server, background):
    with reading(server, LONG | {"background": background}) as (r, rid):
        assert server.post(f"{RESPONSES}/{rid}/cancel", {})[1]["status"] == "cancelled"
        tail = r.read()
    last = json.loads(tail.decode().split("\n\n")[-2].split("data: ")[1])
    assert (
        last["type"] == "response.incomplete"
        and last["response"]["status"] == "cancelled"
        and last["response"]["id"] == rid
    )
    if background:
        assert frames(server.request("GET", f"{RESPONSES}/{rid}?stream=true")[2])[-1] == last
    status, answer = server.post(RESPONSES, {"input": "x", "previous_response_id": rid, "max_output_tokens": 1})
    assert status == 200, answer
    server.wait_idle()


def test_what_runs_is_not_gone_on_from(server):
    rid = server.ok(RESPONSES, LONG | {"background": True})["id"]
    status, answer = server.post(RESPONSES, {"input": "x", "previous_response_id": rid})
    assert status == 400 and answer["error"]["param"] == "previous_response_id"
    assert server.get(f"{RESPONSES}/{rid}/input_items")[1]["data"][0]["content"][0]["text"] == "Count up."
    assert server.post(f"{RESPONSES}/{rid}/cancel", {})[0] == 200
    server.wait_idle()


def test_leaving_in_mid_stream_frees_everything(server):
    for n in (1, 400, 9000):
        s = server.open_request(RESPONSES, LONG | {"stream": True})
        seen = b""
        while len(seen) < n:
            seen += s.recv(65536)
        s.shutdown(socket.SHUT_RDWR)
        s.close()
        rid = "resp_" + seen.split(b'"id":"resp_')[1][:24].decode() if n > 1 else None
        if rid:
            server.wait_until(lambda: server.get(f"{RESPONSES}/{rid}")[0] == 404)  # what nobody read is not kept
    server.wait_idle()


def test_a_background_answer_may_end_while_the_server_stops(make_server):
    s = make_server("--kv-tokens", "4096", "--drain", "1")
    for stream in (False, True):
        s.ok(RESPONSES, LONG | {"background": True}) if not stream else s.open_request(
            RESPONSES, LONG | {"background": True, "stream": True}
        ).close()
    s.wait_until(lambda: s.active() >= 1)
    assert s.stop() == 0


# ---- what is wrong ----

BAD = [
    ("input", v)
    for v in (
        None,
        3,
        {},
        [],
        ["x"],
        [{}],
        [{"role": "user"}],
        [{"role": "robot", "content": "x"}],
        [{"type": 3}],
        [{"type": "hologram"}],
        [{"role": "user", "content": 3}],
        [{"role": "user", "content": [{}]}],
        [{"role": "user", "content": ["x"]}],
        [{"role": "user", "content": [{"type": "input_text"}]}],
        [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
        [{"type": "function_call"}],
        [{"type": "function_call", "call_id": "x", "name": "y", "arguments": {}}],
        [{"type": "function_call_output", "call_id": "x"}],
        [{"type": "function_call_output", "output": "x"}],
        [{"type": "reasoning", "summary": "x"}],
        [{"type": "item_reference"}],
        [{"type": "custom_tool_call", "call_id": "x"}],
    )
]
BAD += [("max_output_tokens", v) for v in ("x", -1, 1.5, [], {}, True, 1 << 40)]
BAD += [("instructions", v) for v in (3, {}, True)] + [("previous_response_id", v) for v in (3, [], True)]
BAD += [
    ("tools", v)
    for v in ("x", {}, [3], [{}], [{"type": "function"}], [{"type": "function", "name": ""}], [{"type": 3}])
]
BAD += [
    ("tool_choice", v)
    for v in (3, {}, "maybe", {"type": "function"}, "required", {"type": "function", "name": "nobody"})
]
BAD += [("text", v) for v in ("x", 3, {"format": 3}, {"format": {}}, {"format": {"type": "hologram"}})]
BAD += [("reasoning", v) for v in ("x", 3, [], {"effort": "huge"}, {"effort": 3})]
BAD += [(n, v) for n in ("store", "background", "stream", "parallel_tool_calls") for v in ("x", 3, [], {})]
BAD += [(n, v) for n in ("metadata", "include", "truncation", "user") for v in (3, True)] + [
    ("truncation", "some"),
    ("conversation", "c"),
    ("prompt", {"id": "p"}),
]
BAD += [(n, v) for n in ("temperature", "top_p", "top_logprobs") for v in ("x", [], {}, True, -2)] + [
    ("top_p", 1.5),
    ("model", 3),
]


def test_what_is_wrong_is_named(server):
    for name, bad in BAD:
        status, answer = server.post(RESPONSES, {"input": "x", "max_output_tokens": 4} | {name: bad})
        assert status == 400 and set(answer["error"]) == {"message", "type", "param", "code"}, (name, bad, answer)
        assert answer["error"]["param"].partition(".")[0] == name and answer["error"]["message"].startswith(name), (
            name,
            bad,
            answer,
        )
    status, answer = server.post(RESPONSES, {"input": "x", "background": True, "store": False})
    assert status == 400 and answer["error"]["param"] == "background"


def test_errors_in_their_shape(server):
    c = client(server)
    with pytest.raises(openai.NotFoundError) as e:
        c.responses.create(model="other", input="x")
    assert e.value.code == "model_not_found"
    for more in ({}, {"stream": True}, {"background": True}):
        with pytest.raises(openai.BadRequestError, match="maximum context length") as e:
            c.responses.create(model="", input="word " * 9000, **more)
        assert e.value.code == "context_length_exceeded" and e.value.param == "input"
    assert server.get(f"{RESPONSES}/resp_nothing")[1]["error"]["type"] == "not_found_error"
    for method, path, status in (
        ("GET", RESPONSES, 405),
        ("PUT", f"{RESPONSES}/x", 405),
        ("GET", f"{RESPONSES}/x/y", 404),
        ("POST", f"{RESPONSES}/x/y", 404),
        ("DELETE", f"{RESPONSES}/x/y", 404),
        ("DELETE", RESPONSES, 405),
        ("GET", f"{RESPONSES}/" + "x" * 500, 404),
    ):
        got, headers, body = server.request(method, path, {} if method == "POST" else None)
        assert got == status and json.loads(body)["error"]["message"], (method, path, got)
        assert status != 405 or "OPTIONS" in headers["allow"]
    done = c.responses.create(model="", input="x", max_output_tokens=1)
    with pytest.raises(openai.BadRequestError, match="complete"):
        c.responses.cancel(done.id)


LOGPROBS = ["message.output_text.logprobs"]


def logprobs_of(response):
    return [t for item in response["output"] if item["type"] == "message" for t in item["content"][0]["logprobs"]]


def test_logprobs_are_those_of_chat_completions(server):
    ask = {"input": "Count to ten.", "max_output_tokens": 24, **GREEDY}
    chat = {
        "messages": [{"role": "user", "content": "Count to ten."}],
        "max_tokens": 24,
        "logprobs": True,
        "top_logprobs": 2,
        **GREEDY,
    }
    wanted = server.ok("/v1/chat/completions", chat)["choices"][0]["logprobs"]["content"]
    whole = server.ok(RESPONSES, ask | {"include": LOGPROBS, "top_logprobs": 2})
    assert whole["top_logprobs"] == 2
    got = logprobs_of(whole)
    text = whole["output"][0]["content"][0]["text"]
    assert got == wanted[: len(got)] and len(got) >= 20 and all(len(t["top_logprobs"]) == 2 for t in got)
    assert b"".join(bytes(t["bytes"]) for t in got).decode() == text
    # streamed: the pieces' are those of the whole, and no others
    status, _, raw = server.request("POST", RESPONSES, ask | {"include": LOGPROBS, "stream": True})
    events = frames(raw)
    pieces = [t for e in events if e["type"] == "response.output_text.delta" for t in e["logprobs"]]
    done = next(e for e in events if e["type"] == "response.output_text.done")
    final = next(e for e in events if e["type"] == "response.completed" or e["type"] == "response.incomplete")
    assert pieces == done["logprobs"] == logprobs_of(final["response"])
    assert [t["logprob"] for t in pieces] == [t["logprob"] for t in got] and pieces[0]["top_logprobs"] == []
    # not asked for: none
    assert logprobs_of(server.ok(RESPONSES, ask)) == []
    assert server.post(RESPONSES, ask | {"top_logprobs": 21})[0] == 400


def test_logprobs_are_of_the_message_alone(thinker):
    r = thinker.responses.create(
        model="",
        input="What is 17 + 25?",
        max_output_tokens=40,
        include=LOGPROBS,
        reasoning={"effort": "high"},
        extra_body=GREEDY | {"thinking_budget": 5},
    ).to_dict()
    assert [item["type"] for item in r["output"]] == ["reasoning", "message"]
    part = r["output"][1]["content"][0]
    told = b"".join(bytes(t["bytes"]) for t in part["logprobs"]).decode()
    assert len(part["logprobs"]) > 5 and told.strip() == part["text"].strip()


def test_truncation_drops_the_oldest_turns(make_server):
    s = make_server("--kv-tokens", "1024")
    longest = 1024 - 16 - 1

    def count(body):
        return s.ok(RESPONSES + "/input_tokens", body)["input_tokens"]

    turns = []
    for i in range(40):
        turns += [
            {"role": "user", "content": f"Turn {i}: the number of the day is {i * 7919}. Say it back to me, please."},
            {"role": "assistant", "content": f"It is {i * 7919}."},
        ]
    ask = {"instructions": "You repeat numbers.", "max_output_tokens": 40, **GREEDY}
    last = {"role": "user", "content": "Which number was the last one?"}
    status, refused = s.post(RESPONSES, ask | {"input": [*turns, last]})
    assert status == 400 and refused["error"]["code"] == "context_length_exceeded"
    auto = ask | {"truncation": "auto"}
    answer = s.ok(RESPONSES, auto | {"input": [*turns, last]})
    assert answer["truncation"] == "auto"
    # as few turns went as leave room for the answer, and the instructions stayed
    used = answer["usage"]["input_tokens"]
    kept = next(k for k in range(1, 41) if count(ask | {"input": [*turns[-2 * k :], last]}) >= used)
    whole = ask | {"input": [*turns[-2 * kept :], last]}
    assert count(whole) == used <= longest - 40 < count(ask | {"input": [*turns[-2 * kept - 2 :], last]})
    assert 3 < kept < 40 and s.ok(RESPONSES, whole)["output"][0]["content"] == answer["output"][0]["content"]
    assert count(auto | {"input": [*turns, last]}) == used
    # what was left out is still in the store, and is left out again
    again = s.ok(RESPONSES, auto | {"input": "And before?", "previous_response_id": answer["id"]})
    assert again["usage"]["input_tokens"] <= longest - 40
    assert s.post(RESPONSES, ask | {"input": "And before?", "previous_response_id": answer["id"]})[0] == 400
    # what fits stays whole
    short = {"input": [*turns[:4], last]}
    assert count(auto | short) == count(ask | short)
    # not even the last turn
    huge = {"role": "user", "content": "word " * 2000}
    status, refused = s.post(RESPONSES, auto | {"input": [*turns, huge]})
    assert status == 400 and refused["error"]["code"] == "context_length_exceeded"
    # a turn goes with its calls and their results
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c1", "output": "7 " * 300}
    agent = [turns[0], call, result, *turns[2:], last]
    assert s.ok(RESPONSES, auto | {"input": agent})["usage"]["input_tokens"] == used
    assert s.post(RESPONSES, ask | {"truncation": "some"} | short)[0] == 400
