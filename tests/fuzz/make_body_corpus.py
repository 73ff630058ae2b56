#!/usr/bin/env python3
"""Writes corpus/fuzz_json_body/ and corpus/fuzz_utf8/: request bodies of every endpoint, texts with stop strings. No arguments."""

import json
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
CHAT, COMPLETIONS, MESSAGES, COUNT, RESPONSES, COMPLETION = range(6)
TOOL = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
SCHEMA = {"name": "f", "input_schema": TOOL["parameters"], "cache_control": {"type": "ephemeral"}}

BODIES = {
    "chat": (
        CHAT,
        {"messages": [{"role": "user", "content": "Hi"}], "model": "", "max_tokens": 5, "temperature": 0.5, "n": 2},
    ),
    "chat_parts": (
        CHAT,
        {
            "messages": [
                {"role": "developer", "content": [{"type": "text", "text": "a"}]},
                {"role": "user", "content": [{"type": "input_text", "text": "\u00e9"}]},
            ],
            "stop": ["a", "b"],
        },
    ),
    "chat_tools": (
        CHAT,
        {
            "messages": [
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "call_1", "content": "1"},
            ],
            "tools": [{"type": "function", "function": TOOL}, {"type": "web_search"}],
            "tool_choice": "auto",
            "parallel_tool_calls": False,
        },
    ),
    "chat_named": (
        CHAT,
        {
            "messages": [{"role": "user", "content": "x"}],
            "tools": [{"type": "function", "function": TOOL}],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
        },
    ),
    "chat_thinking": (
        CHAT,
        {
            "messages": [{"role": "assistant", "reasoning_content": "r", "content": "c"}],
            "reasoning_effort": "low",
            "thinking": {"type": "enabled", "budget_tokens": 5},
            "chat_template_kwargs": {"enable_thinking": True, "k": [1]},
        },
    ),
    "chat_continue": (
        CHAT,
        {
            "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}],
            "continue_final_message": True,
            "add_generation_prompt": False,
            "logprobs": True,
            "top_logprobs": 3,
        },
    ),
    "chat_sampling": (
        CHAT,
        {
            "messages": [{"role": "user", "content": "x"}],
            "top_p": 0.9,
            "top_k": 40,
            "min_p": 0.05,
            "seed": -1,
            "logit_bias": {"5": -100, "7": 1.5},
            "presence_penalty": 1,
            "frequency_penalty": -2,
            "repetition_penalty": 1.1,
            "stream": True,
            "stream_options": {"include_usage": True},
            "response_format": {"type": "text"},
        },
    ),
    "text": (COMPLETIONS, {"prompt": "x", "echo": True, "logprobs": 2, "best_of": 3, "suffix": ""}),
    "text_list": (COMPLETIONS, {"prompt": ["x", "y"], "max_tokens": 0}),
    "text_tokens": (COMPLETIONS, {"prompt": [[1, 2, 3], [4]], "ignore_eos": True, "cache_prompt": False}),
    "completion": (
        COMPLETION,
        {"prompt": "a <eos> b", "n_predict": -1, "n_probs": 2, "response_fields": ["content", "timings/prompt_n"]},
    ),
    "completion_mixed": (
        COMPLETION,
        {"prompt": ["a", 5, "b c", 95], "return_tokens": True, "logit_bias": [[5, False]]},
    ),
    "completion_many": (
        COMPLETION,
        {"prompt": ["a", [1, 2], [3, "b"], {"prompt_string": "c", "multimodal_data": []}], "n_cmpl": 2, "stream": True},
    ),
    "messages": (
        MESSAGES,
        {
            "model": "m",
            "max_tokens": 5,
            "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
            "stop_sequences": ["a"],
        },
    ),
    "messages_tools": (
        MESSAGES,
        {
            "max_tokens": 5,
            "tools": [SCHEMA],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "messages": [
                {"role": "user", "content": "x"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "t", "signature": "s"},
                        {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
                    ],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "1", "content": "2", "is_error": True}],
                },
            ],
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "metadata": {"user_id": "u"},
        },
    ),
    "count": (
        COUNT,
        {"model": "m", "messages": [{"role": "user", "content": "x"}, {"role": "system", "content": "late"}]},
    ),
    "responses": (
        RESPONSES,
        {
            "input": "x",
            "instructions": "i",
            "max_output_tokens": 5,
            "text": {"format": {"type": "text"}},
            "reasoning": {"effort": "low", "summary": "auto"},
            "metadata": {"a": "b"},
            "store": False,
        },
    ),
    "responses_items": (
        RESPONSES,
        {
            "tools": [{"type": "function", **TOOL}, {"type": "custom", "name": "p"}],
            "tool_choice": {"type": "function", "name": "f"},
            "input": [
                {"role": "developer", "content": "d"},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "r"}], "encrypted_content": "e"},
                {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                {"type": "web_search_call", "id": "w"},
                {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "o"}]},
                {"type": "custom_tool_call", "call_id": "2", "name": "p", "input": "i"},
                {"type": "custom_tool_call_output", "call_id": "2", "output": "o"},
                {"type": "item_reference", "id": "msg_1"},
            ],
        },
    ),
}
BROKEN = {
    "empty": b"",
    "no_json": b"\x00{",
    "list": b"\x00[1]",
    "twice": b'\x00{"a":1,"a":2}',
    "deep": b"\x00" + b"[" * 200,
    "number": b'\x00{"messages":1e999}',
    "ill_formed": b'\x00{"a":"\xff"}',
}
TEXTS = {
    "plain": b"\x00\x00hello",
    "cut": b"\x11\x00\xe6\x97\xa5\xe6\x9c\xac \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x9a\x80",
    "ill_formed": b"\x05\x00\xe6\x97\xf0\x9f\x91\xff\xc0\x80\xed\xa0\x80\xf4\x90\x80\x80 end\xe2\x80",
    "stops": b"\x03\x0aabcabdxxabcabcabd tail",
    "stop_of_replacement": b"\x03\x09\xef\xbf\xbda\xffbc",
    "overlapping": b"\x01\x07aabaabaaaabaab",
}


def main():
    for folder in ("fuzz_json_body", "fuzz_utf8"):
        (CORPUS / folder).mkdir(parents=True, exist_ok=True)
    for name, (endpoint, body) in BODIES.items():
        (CORPUS / "fuzz_json_body" / name).write_bytes(
            bytes([endpoint]) + json.dumps(body, separators=(",", ":")).encode()
        )
    for name, data in BROKEN.items():
        (CORPUS / "fuzz_json_body" / name).write_bytes(data)
    for name, data in TEXTS.items():
        (CORPUS / "fuzz_utf8" / name).write_bytes(data)


main()
