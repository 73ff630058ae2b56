"""Tool calls and thinking through the openai package: streamed and not, forced, parallel, results, budgets."""

import json
from pathlib import Path

import openai
import pydantic
import pytest
from radish_server import Server

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city",
        "parameters": {
            "type": "object",
            "required": ["city"],
            "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["c", "f"]}},
        },
    },
}
TIME = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "Time of day in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
ASK = [{"role": "user", "content": "What is the weather in Paris right now? Use the tool."}]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def client(server):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="-", max_retries=0)


@pytest.fixture(scope="module")
def coder():
    s = Server("--threads", "2", "--kv-tokens", "32768", model="qwen2.5-coder-1.5b")
    yield client(s)
    assert s.stop() == 0


@pytest.fixture(scope="module")
def thinker():
    template = Path(__file__).with_name("think.jinja")
    s = Server("--threads", "2", "--kv-tokens", "32768", "--chat-template", str(template), model="qwen2.5-coder-0.5b")
    yield client(s)
    assert s.stop() == 0


def ask(c, messages=ASK, tools=(WEATHER,), **more):
    given = {"model": "", "temperature": 0, "max_tokens": 100, "seed": 1} | more
    return c.chat.completions.create(messages=messages, tools=list(tools), **given)


def gather(stream):
    """(message as one dict, finish reason, number of chunks with a finish reason)"""
    out, finish, n_finish = {"content": "", "reasoning": "", "calls": []}, None, 0
    for chunk in stream:
        for choice in chunk.choices:
            delta = choice.delta
            out["content"] += delta.content or ""
            out["reasoning"] += getattr(delta, "reasoning_content", None) or ""
            assert getattr(delta, "reasoning_content", None) == getattr(delta, "reasoning", None)
            for call in delta.tool_calls or []:
                if call.index == len(out["calls"]):
                    assert call.id and call.function.name and call.function.arguments == "" and call.type == "function"
                    out["calls"].append([call.id, call.function.name, ""])
                else:
                    assert call.index == len(out["calls"]) - 1 and call.id is None and call.function.name is None
                out["calls"][-1][2] += call.function.arguments
            if choice.finish_reason:
                finish, n_finish = choice.finish_reason, n_finish + 1
    return out, finish, n_finish


def is_weather_call(call):
    assert call.type == "function" and call.id.startswith("call_") and len(call.id) == 29
    assert call.function.name == "get_weather"
    return "Paris" in json.loads(call.function.arguments)["city"]


def test_a_call_is_no_content(coder):
    choice = ask(coder).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert len(choice.message.tool_calls) == 1 and is_weather_call(choice.message.tool_calls[0])


@pytest.mark.parametrize("choice", ["auto", "required", NAMED])
def test_streamed_is_the_same(coder, choice):
    whole = ask(coder, tool_choice=choice).choices[0]
    out, finish, n_finish = gather(ask(coder, tool_choice=choice, stream=True))
    assert finish == whole.finish_reason == "tool_calls" and n_finish == 1
    assert out["content"] == ""
    assert [c[1:] for c in out["calls"]] == [[c.function.name, c.function.arguments] for c in whole.message.tool_calls]


def test_none_makes_no_call(coder):
    choice = ask(coder, tool_choice="none").choices[0]
    assert choice.finish_reason in ("stop", "length") and not choice.message.tool_calls and choice.message.content


def test_a_named_tool_is_called_whatever_was_asked(coder):
    greeting = [{"role": "user", "content": "Say hello."}]
    for name in ("get_time", "get_weather"):
        choice = ask(
            coder, greeting, (WEATHER, TIME), tool_choice={"type": "function", "function": {"name": name}}
        ).choices[0]
        assert [c.function.name for c in choice.message.tool_calls][0] == name
        json.loads(choice.message.tool_calls[0].function.arguments)


def test_required_calls_one_of_them(coder):
    choice = ask(
        coder, [{"role": "user", "content": "What time is it in Rome?"}], (WEATHER, TIME), tool_choice="required"
    ).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls[0].function.name in (
        "get_time",
        "get_weather",
    )


def test_parallel_calls_and_only_one(coder):
    two = [{"role": "user", "content": "Get the weather of Paris and of Berlin, with one call each."}]
    many = ask(coder, two, tool_choice="required").choices[0].message.tool_calls
    one = ask(coder, two, tool_choice="required", parallel_tool_calls=False).choices[0]
    assert len(many) == 2 and len({c.id for c in many}) == 2
    assert [json.loads(c.function.arguments)["city"].split(",")[0] for c in many] == ["Paris", "Berlin"]
    assert len(one.message.tool_calls) == 1 and one.finish_reason == "tool_calls"
    assert one.message.tool_calls[0].function == many[0].function


def test_results_go_back(coder):
    message = ask(coder, tool_choice=NAMED).choices[0].message
    history = ASK + [
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "17 degrees, cloudy"},
    ]
    answer = ask(coder, history, tool_choice="none").choices[0]
    assert answer.message.content and not answer.message.tool_calls


def test_a_limit_wins_over_the_call(coder):
    choice = ask(coder, max_tokens=12, tool_choice=NAMED).choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls[0].function.name == "get_weather"


@pytest.mark.parametrize(
    "more,param",
    [
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": 3}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": "get_weather"}, "tools"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ],
)
def test_what_makes_no_sense_is_refused(coder, more, param):
    with pytest.raises(openai.BadRequestError) as e:
        coder.chat.completions.create(**{"model": "", "messages": ASK, "tools": [WEATHER]} | more)
    assert e.value.param == param


def test_tools_of_other_types_are_skipped(coder):
    choice = ask(coder, tools=({"type": "web_search"}, WEATHER), tool_choice="required").choices[0]
    assert choice.message.tool_calls[0].function.name == "get_weather"


def test_a_model_without_tools_is_told_about_them(server):
    c = client(server)
    choice = ask(c, tool_choice=NAMED).choices[0]
    assert choice.message.tool_calls[0].function.name == "get_weather"
    prompt = server.ok("/apply-template", {"messages": ASK, "tools": [WEATHER]})["prompt"]
    assert "<tool_call>" in prompt and "get_weather" in prompt
    history = ASK + [
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": "x", "content": "17 degrees"},
    ]
    prompt = server.ok("/apply-template", {"messages": history, "tools": [WEATHER]})["prompt"]
    assert "<tool_response>\n17 degrees\n</tool_response>" in prompt and '<tool_call>\n{"name": "get_weather"' in prompt


class Weather(pydantic.BaseModel):
    """Current weather of a city"""

    city: str
    unit: str = "c"


HELPED = openai.pydantic_function_tool(Weather, name="get_weather")


def test_the_parse_helper_gives_the_arguments_as_an_object(coder):
    r = coder.chat.completions.parse(
        model="", messages=ASK, tools=[HELPED], tool_choice=NAMED, temperature=0, max_tokens=100
    )
    arguments = r.choices[0].message.tool_calls[0].function.parsed_arguments
    assert isinstance(arguments, Weather) and "Paris" in arguments.city


def test_the_stream_helper_gathers_the_call(coder):
    ask = {"model": "", "messages": ASK, "tools": [HELPED], "tool_choice": NAMED, "temperature": 0, "max_tokens": 100}
    pieces, done = "", []
    with coder.chat.completions.stream(**ask) as stream:
        for event in stream:
            if event.type == "tool_calls.function.arguments.delta":
                assert event.name == "get_weather" and event.index == 0
                pieces += event.arguments_delta
            elif event.type == "tool_calls.function.arguments.done":
                done.append(event)
        final = stream.get_final_completion()
    call = final.choices[0].message.tool_calls[0]
    assert final.choices[0].finish_reason == "tool_calls" and len(done) == 1
    assert pieces == done[0].arguments == call.function.arguments and "Paris" in call.function.parsed_arguments.city
    whole = coder.chat.completions.parse(**ask).choices[0].message.tool_calls[0]
    assert whole.function.arguments == call.function.arguments and whole.id != call.id


# ---- thinking: a template that opens it, whatever the model makes of that ----

QUESTION = [{"role": "user", "content": "What is 17 + 25?"}]


def think(c, stream=False, max_tokens=48, **body):
    return c.chat.completions.create(
        model="", messages=QUESTION, temperature=0, max_tokens=max_tokens, stream=stream, extra_body=body
    )


def test_thinking_is_apart(thinker):
    r = think(thinker, max_tokens=6)
    message = r.choices[0].message
    assert message.reasoning_content and message.reasoning_content == message.reasoning
    assert message.content == "" and r.choices[0].finish_reason == "length"
    assert r.usage.completion_tokens_details.reasoning_tokens == r.usage.completion_tokens == 6


@pytest.mark.parametrize(
    "budget",
    [
        {"thinking_budget": 5},
        {"thinking": {"type": "enabled", "budget_tokens": 5}},
        {"reasoning": {"max_tokens": 5}},
        {"thinking_token_budget": 5},
    ],
)
def test_a_budget_closes_it(thinker, budget):
    r = think(thinker, **budget)
    message = r.choices[0].message
    assert message.reasoning_content and message.content and "think>" not in message.content + message.reasoning
    assert 5 <= r.usage.completion_tokens_details.reasoning_tokens < 12
    out, _, _ = gather(think(thinker, stream=True, **budget))
    assert (out["content"], out["reasoning"]) == (message.content, message.reasoning_content)


@pytest.mark.parametrize(
    "off",
    [
        {"thinking_budget": 0},
        {"enable_thinking": False},
        {"reasoning_effort": "none"},
        {"thinking": {"type": "disabled"}},
        {"reasoning": {"enabled": False}},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_it_can_be_off(thinker, off):
    r = think(thinker, **off)
    message = r.choices[0].message
    assert not hasattr(message, "reasoning_content") and message.content and "think>" not in message.content
    assert r.usage.completion_tokens_details.reasoning_tokens == 0


def test_it_can_stay_in_the_content_or_be_left_out(thinker):
    kept = think(thinker, thinking_budget=5, reasoning_format="none").choices[0].message
    apart = think(thinker, thinking_budget=5).choices[0].message
    hidden = think(thinker, thinking_budget=5, include_reasoning=False).choices[0].message
    assert kept.content.strip().startswith(apart.reasoning_content) and "</think>" in kept.content
    assert hidden.content == apart.content and not hasattr(hidden, "reasoning_content")


@pytest.mark.parametrize(
    "name,bad",
    [
        ("thinking", "yes"),
        ("thinking", {"type": "maybe"}),
        ("reasoning_effort", "huge"),
        ("reasoning", 3),
        ("thinking_budget", -2),
        ("thinking_budget", "5"),
        ("enable_thinking", 1),
        ("reasoning_format", "x"),
        ("include_reasoning", 0),
    ],
)
def test_bad_thinking_parameters_are_named(thinker, name, bad):
    with pytest.raises(openai.BadRequestError) as e:
        think(thinker, **{name: bad})
    assert e.value.param.split(".")[0] == name
