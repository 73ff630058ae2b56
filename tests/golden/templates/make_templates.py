#!/usr/bin/env python3
"""Goldens of the Jinja interpreter, by jinja2 configured as transformers does for chat templates.

    make_templates.py conversations OUT      60 conversations as JSON
    make_templates.py snippets OUT           one line per snippet: {"t": template, "e": text} or {"t": ..., "error": message}
    make_templates.py gguf OUT FILE...       the templates inside GGUF files, rendered over the conversations: one JSON object a file
    make_templates.py tokenizers OUT DIR     the same of DIR/*/tokenizer_config.json.xz (prints to a private file: test data, not kept)

Needs jinja2, and gguf for `gguf`.
"""

import datetime
import glob
import json
import lzma
import os
import random
import sys

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = os.path.dirname(os.path.abspath(__file__))


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime.fromtimestamp(1700000000, datetime.timezone.utc).strftime(
        f
    )
    return env


TEXTS = [
    "Hello!",
    "",
    'What\'s the "weather" like?',
    "Zażółć gęślą jaźń 🦜 日本語",
    "line one\nline two\n\n\tindented",
    "  spaces around  ",
    "<|im_start|>user\nfake<|im_end|>",
    "{{ not }} {% a %} {# template #}",
    "a\\b\\n 'single' \"double\"",
    "é\u0301 ‍👩‍👩‍👧 \u00a0nbsp",
    "<think>\nhidden\n</think>\n\nvisible",
    "```python\nprint('x')\n```",
    "1234567890",
    "\r\nwindows\r\n",
    "<tool_response>x</tool_response>",
]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'Weather of a "city" (°C).',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "enum": ["Paris", "Kraków", "東京"]},
                    "days": {"type": "integer", "default": 3, "minimum": -1},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "z_first",
            "parameters": {
                "b": 1,
                "a": [1, 2.5, -0.0, 1e20, 1e-7, 1.0, True, False, None, []],
                "nested": {"deep": {"er": {}}},
                "": "empty key",
            },
            "strict": True,
        },
    },
    {
        "type": "function",
        "function": {
            "name": "quote",
            "description": "tab\tnewline\nquote' <b>&amp;</b> / \\ \u007f \u2028",
            "parameters": {"type": "object", "properties": {}},
        },
    },
]

ARGUMENTS = [
    {"city": "Paris", "days": 2},
    {},
    {"q": 'it\'s "x"\n', "n": [1, {"k": None}], "f": 0.1, "t": True},
    '{"city": "text"}',
    {"z": 1, "a": 2, "unicode": "żółw 🐢"},
]


def conversations():
    rng = random.Random(7)
    out = []
    for i in range(60):
        messages = []
        if i % 3 == 0:
            messages.append({"role": "system", "content": rng.choice(TEXTS)})
        with_tools = i % 2 == 1
        for turn in range(rng.randint(1, 4)):
            messages.append({"role": "user", "content": TEXTS[i % len(TEXTS)] if turn == 0 else rng.choice(TEXTS)})
            if with_tools and rng.random() < 0.6:
                calls = []
                for k in range(rng.randint(1, 3)):
                    call = {
                        "id": "call%05d" % rng.randint(0, 99999),
                        "type": "function",
                        "function": {"name": rng.choice(TOOLS)["function"]["name"], "arguments": rng.choice(ARGUMENTS)},
                    }
                    calls.append(call if i % 5 else call["function"])
                message = {"role": "assistant", "tool_calls": calls}
                if rng.random() < 0.7:
                    message["content"] = rng.choice(["", "Let me look.", None])
                messages.append(message)
                for call in calls:
                    messages.append(
                        {
                            "role": "tool",
                            "tool_call_id": call.get("id", "call00000"),
                            "content": rng.choice(["21 °C", "", '{"t": 21.5}', "line\nline"]),
                        }
                    )
            if turn or rng.random() < 0.8:
                messages.append({"role": "assistant", "content": rng.choice(TEXTS)})
                if rng.random() < 0.2:
                    messages[-1]["reasoning_content"] = "because\n"
        if i % 17 == 9:
            messages[-1].pop("content", None)
        if i % 19 == 7:
            messages[0]["content"] = [
                {"type": "text", "text": "part one"},
                {"type": "image"},
                {"type": "text", "text": " two "},
            ]
        c = {"messages": messages, "add_generation_prompt": i % 4 != 2}
        if with_tools:
            c["tools"] = rng.sample(TOOLS, rng.randint(1, 3))
        if i % 7 == 3:
            c["kwargs"] = {"enable_thinking": i % 2 == 0}
        out.append(c)
    return out


def render(template, variables):
    try:
        return {"e": template.render(**variables)}
    except Exception as e:  # any failure is an answer
        return {"error": str(e)[:120]}


def render_all(source, bos, eos):
    template = environment().from_string(source)
    expected = []
    for c in json.load(open(os.path.join(HERE, "conversations.json"))):
        variables = dict(
            c.get("kwargs", {}),
            messages=c["messages"],
            tools=c.get("tools"),
            documents=None,
            bos_token=bos,
            eos_token=eos,
            add_generation_prompt=c["add_generation_prompt"],
        )
        expected.append(render(template, variables))
    return {"source": source, "bos": bos, "eos": eos, "expected": expected}


def from_gguf(path):
    import gguf

    fields = gguf.GGUFReader(path).fields

    def text(name):
        field = fields.get(name)
        return bytes(field.parts[field.data[0]]).decode() if field else None

    def token(name):
        field = fields.get(name)
        tokens = fields["tokenizer.ggml.tokens"]
        return bytes(tokens.parts[tokens.data[int(field.parts[field.data[0]][0])]]).decode() if field else ""

    return render_all(
        text("tokenizer.chat_template"), token("tokenizer.ggml.bos_token_id"), token("tokenizer.ggml.eos_token_id")
    )


def from_config(config):
    if not isinstance(config.get("chat_template"), str):
        return None

    def token(name):
        t = config.get(name)
        return t["content"] if isinstance(t, dict) else t or ""

    return render_all(config["chat_template"], token("bos_token"), token("eos_token"))


def write(path, value):
    with open(path, "w") as f:
        json.dump(value, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


def main():
    what, out, rest = sys.argv[1], sys.argv[2], sys.argv[3:]
    if what == "conversations":
        write(out, conversations())
    elif what == "snippets":
        context = json.load(open(os.path.join(HERE, "snippet_context.json")))
        with open(out, "w") as f:
            for line in open(os.path.join(HERE, "snippets.txt")):
                if not line.strip() or line.startswith("##"):
                    continue
                source = line.rstrip("\n").replace("\\N", "\n")
                try:
                    result = render(environment().from_string(source), json.loads(json.dumps(context)))
                except Exception as e:
                    result = {"error": str(e)[:120]}
                f.write(json.dumps(dict({"t": source}, **result), ensure_ascii=False) + "\n")
    elif what == "gguf":
        for path in rest:
            name = os.path.splitext(os.path.basename(path))[0]
            write(os.path.join(out, "gguf_%s.json" % name), from_gguf(path))
    elif what == "tokenizers":
        for path in sorted(glob.glob(os.path.join(rest[0], "*", "tokenizer_config.json.xz"))):
            value = from_config(json.loads(lzma.open(path).read()))
            if value:
                write(os.path.join(out, "family_%s.json" % os.path.basename(os.path.dirname(path))), value)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
