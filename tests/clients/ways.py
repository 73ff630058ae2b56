"""One client library each, and the ways in which it asks for an object of a form. Run by tests/clients/run, in an
environment where these libraries are; nothing here knows radish."""

import json

MODEL = "qwen2.5-coder-0.5b"
TOKENS = 400
WAYS = {}
# What these clients send is less than the form: anthropic's writes bounds, lengths and patterns into descriptions,
# langchain's leaves a model of itself open (`items: {}`). The model may go beyond, and the client refuses it then.
LESS_IS_SENT = ("anthropic: messages.parse", "langchain-anthropic: json_schema")
LESS_IS_SENT += ("langchain: function_calling", "langchain: function_calling, strict")
LESS_IS_SENT += ("langchain: json_schema, strict", "langchain-anthropic: function_calling")


# (way's beginning, form): the client itself refuses the form before it asks.
CANNOT = {("guidance", "Event")}  # no format uri


def way(name):
    def keep(f):
        WAYS[name] = f
        return f

    return keep


def ask(question):
    return [{"role": "user", "content": question}]


def openai_client(base):
    import openai

    return openai.OpenAI(base_url=base + "/v1", api_key="x", max_retries=0)


# --- openai ------------------------------------------------------------------------------------------------------------


@way("openai: chat.completions.parse")
def openai_chat(base, form, question):
    r = openai_client(base).chat.completions.parse(
        model=MODEL, messages=ask(question), response_format=form, max_tokens=TOKENS
    )
    return r.choices[0].message.parsed


@way("openai: chat.completions.stream")
def openai_stream(base, form, question):
    client = openai_client(base)
    with client.chat.completions.stream(
        model=MODEL, messages=ask(question), response_format=form, max_tokens=TOKENS
    ) as stream:
        return stream.get_final_completion().choices[0].message.parsed


@way("openai: parse, tools strict")
def openai_tools(base, form, question):
    import openai

    r = openai_client(base).chat.completions.parse(
        model=MODEL,
        messages=ask(question),
        tools=[openai.pydantic_function_tool(form)],
        tool_choice="required",
        max_tokens=TOKENS,
        parallel_tool_calls=False,
    )
    return r.choices[0].message.tool_calls[0].function.parsed_arguments


@way("openai: responses.parse")
def openai_responses(base, form, question):
    return (
        openai_client(base)
        .responses.parse(model=MODEL, input=question, text_format=form, max_output_tokens=TOKENS)
        .output_parsed
    )


@way("openai: responses, strict function")
def openai_responses_tool(base, form, question):
    import openai

    tool = openai.pydantic_function_tool(form)["function"]
    r = openai_client(base).responses.parse(
        model=MODEL,
        input=question,
        tools=[{"type": "function", "name": tool["name"], "parameters": tool["parameters"], "strict": True}],
        tool_choice={"type": "function", "name": tool["name"]},
        max_output_tokens=TOKENS,
    )
    return form.model_validate_json(next(o for o in r.output if o.type == "function_call").arguments)


# --- anthropic, ollama -------------------------------------------------------------------------------------------------


@way("anthropic: output_config.format")
def anthropic_format(base, form, question):
    import anthropic

    client = anthropic.Anthropic(base_url=base, api_key="x", max_retries=0)
    m = client.messages.create(
        model=MODEL,
        max_tokens=TOKENS,
        messages=ask(question),
        output_config={"format": {"type": "json_schema", "schema": form.model_json_schema()}},
    )
    return form.model_validate_json("".join(b.text for b in m.content if b.type == "text"))


@way("anthropic: messages.parse")
def anthropic_parse(base, form, question):
    import anthropic

    client = anthropic.Anthropic(base_url=base, api_key="x", max_retries=0)
    m = client.messages.parse(model=MODEL, max_tokens=TOKENS, messages=ask(question), output_format=form)
    return m.parsed_output


@way("anthropic: named tool")
def anthropic_tool(base, form, question):
    import anthropic

    client = anthropic.Anthropic(base_url=base, api_key="x", max_retries=0)
    m = client.messages.create(
        model=MODEL,
        max_tokens=TOKENS,
        messages=ask(question),
        tools=[{"name": "answer", "description": "The answer", "input_schema": form.model_json_schema()}],
        tool_choice={"type": "tool", "name": "answer"},
    )
    return form.model_validate(next(b for b in m.content if b.type == "tool_use").input)


@way("ollama: chat, format schema")
def ollama_chat(base, form, question):
    import ollama

    r = ollama.Client(host=base).chat(
        model=MODEL, messages=ask(question), format=form.model_json_schema(), options={"num_predict": TOKENS}
    )
    return form.model_validate_json(r.message.content)


@way("ollama: generate, streamed, format schema")
def ollama_generate(base, form, question):
    import ollama

    parts = ollama.Client(host=base).generate(
        model=MODEL, prompt=question, format=form.model_json_schema(), options={"num_predict": TOKENS}, stream=True
    )
    return form.model_validate_json("".join(p.response for p in parts))


@way("ollama: format json")
def ollama_json(base, form, question):
    import ollama

    r = ollama.Client(host=base).chat(
        model=MODEL, messages=ask(question + " As JSON."), format="json", options={"num_predict": TOKENS}
    )
    if r.done_reason == "length":  # any JSON may be longer than that: its beginning
        assert r.message.content.lstrip().startswith("{")
        return dict
    return json.loads(r.message.content)


# --- instructor --------------------------------------------------------------------------------------------------------


def instructor_way(mode):
    def go(base, form, question):
        import instructor

        client = instructor.from_openai(openai_client(base), mode=getattr(instructor.Mode, mode))
        return client.chat.completions.create(
            model=MODEL, messages=ask(question), response_model=form, max_tokens=TOKENS, max_retries=0
        )

    return go


for mode in ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS"):
    WAYS["instructor: " + mode] = instructor_way(mode)


@way("instructor: ANTHROPIC_TOOLS")
def instructor_anthropic(base, form, question):
    import anthropic
    import instructor

    client = instructor.from_anthropic(
        anthropic.Anthropic(base_url=base, api_key="x", max_retries=0), mode=instructor.Mode.ANTHROPIC_TOOLS
    )
    return client.messages.create(
        model=MODEL, messages=ask(question), response_model=form, max_tokens=TOKENS, max_retries=0
    )


# --- pydantic-ai -------------------------------------------------------------------------------------------------------


def pydantic_ai_way(api, output):
    def go(base, form, question):
        import pydantic_ai
        from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
        from pydantic_ai.providers.openai import OpenAIProvider

        of = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
        model = of(MODEL, provider=OpenAIProvider(base_url=base + "/v1", api_key="x"))
        agent = pydantic_ai.Agent(
            model,
            output_type=getattr(pydantic_ai, output)(form),
            retries=0,
            model_settings={"max_tokens": TOKENS, "parallel_tool_calls": False},
        )
        return agent.run_sync(question).output

    return go


for api in ("chat", "responses"):  # its way to Messages does not go with the newest anthropic package
    for output in ("ToolOutput", "NativeOutput"):
        WAYS["pydantic-ai: %s, %s" % (api, output)] = pydantic_ai_way(api, output)


# --- langchain ---------------------------------------------------------------------------------------------------------


def langchain_way(method, **more):
    def go(base, form, question):
        from langchain_openai import ChatOpenAI

        llm = ChatOpenAI(model=MODEL, base_url=base + "/v1", api_key="x", max_retries=0, max_tokens=TOKENS)
        if method == "json_mode":  # the schema is not sent: what comes is JSON
            llm = llm.with_structured_output(None, method=method, include_raw=True)
            r = llm.invoke(question + " As a JSON object.")
            if r["raw"].response_metadata["finish_reason"] == "length":
                return dict
            return r["parsed"]
        return llm.with_structured_output(form, method=method, **more).invoke(question)

    return go


WAYS["langchain: json_schema"] = langchain_way("json_schema")
WAYS["langchain: json_schema, strict"] = langchain_way("json_schema", strict=True)
WAYS["langchain: function_calling"] = langchain_way("function_calling")
WAYS["langchain: function_calling, strict"] = langchain_way("function_calling", strict=True)
WAYS["langchain: json_mode"] = langchain_way("json_mode")


@way("langchain-ollama: json_schema")
def langchain_ollama(base, form, question):
    from langchain_ollama import ChatOllama

    llm = ChatOllama(model=MODEL, base_url=base, num_predict=TOKENS)
    return llm.with_structured_output(form, method="json_schema").invoke(question)


@way("langchain-anthropic: function_calling")
def langchain_anthropic(base, form, question):
    from langchain_anthropic import ChatAnthropic

    llm = ChatAnthropic(model=MODEL, base_url=base, api_key="x", max_retries=0, max_tokens=TOKENS)
    return llm.with_structured_output(form).invoke(question)


@way("langchain-anthropic: json_schema")
def langchain_anthropic_native(base, form, question):
    from langchain_anthropic import ChatAnthropic

    llm = ChatAnthropic(model=MODEL, base_url=base, api_key="x", max_retries=0, max_tokens=TOKENS)
    return llm.with_structured_output(form, method="json_schema").invoke(question)


# --- outlines ----------------------------------------------------------------------------------------------------------


def outlines_way(of):
    def go(base, form, question):
        import outlines

        client = openai_client(base)
        if of == "ollama":
            import ollama

            model = outlines.from_ollama(ollama.Client(host=base), MODEL)
            text = model(question, form, options={"num_predict": TOKENS})
        else:
            model = getattr(outlines, "from_" + of)(client, MODEL)
            text = model(question, form, max_tokens=TOKENS)
        return form.model_validate_json(text)

    return go


for of in ("openai", "vllm", "sglang", "ollama"):
    WAYS["outlines: " + of] = outlines_way(of)


@way("outlines: vllm, choice and regex")
def outlines_words(base, form, question):
    from typing import Literal

    import outlines
    from outlines.types import CFG, Regex

    model = outlines.from_vllm(openai_client(base), MODEL)
    assert model(question, Literal["yes", "no"], max_tokens=TOKENS) in ("yes", "no")
    assert len(model(question, Regex(r"[a-f]{4}"), max_tokens=TOKENS)) == 4
    assert model(question, CFG('start: ("a" | "b") "c"'), max_tokens=TOKENS) in ("ac", "bc")
    assert str(int(model(question, int, max_tokens=TOKENS)))
    return str


# --- guidance ----------------------------------------------------------------------------------------------------------


@way("guidance: vllm, json")
def guidance_json(base, form, question):
    import guidance
    from guidance.models.experimental import VLLMModel

    lm = VLLMModel(MODEL, base_url=base + "/v1", api_key="x", echo=False)
    with guidance.user():
        lm += question
    with guidance.assistant():
        lm += guidance.json("it", schema=form, max_tokens=TOKENS)
    return form.model_validate_json(lm["it"])


@way("guidance: vllm, gen and select")
def guidance_words(base, form, question):
    import guidance
    from guidance.models.experimental import VLLMModel

    lm = VLLMModel(MODEL, base_url=base + "/v1", api_key="x", echo=False)
    with guidance.user():
        lm += question
    with guidance.assistant():
        lm += "It is " + guidance.select(["good", "bad"], name="a") + ": " + guidance.gen("b", regex=r"\d{3}")
    assert lm["a"] in ("good", "bad") and len(str(int(lm["b"]) + 1000)) == 4
    return str


@way("guidance: openai, json")
def guidance_openai(base, form, question):
    import guidance

    lm = guidance.models.OpenAI(MODEL, base_url=base + "/v1", api_key="x", echo=False)
    with guidance.user():
        lm += question
    with guidance.assistant():
        lm += guidance.json("it", schema=form, max_tokens=TOKENS)
    return form.model_validate_json(lm["it"])
