"""llama-server's own endpoints: POST /completion in all its forms, the same text as /v1/completions, what is refused; GET /slots."""

import json
import threading

import pytest
from radish_server import TINY, token_ids, words

COMPLETION, TEXT = "/completion", "/v1/completions"
PROMPT = "Once upon a time"
GREEDY = {"prompt": PROMPT, "n_predict": 8, "temperature": 0}
# what llama-server's documentation says of an answer
MEMBERS = {
    "content": str,
    "tokens": list,
    "stop": bool,
    "generation_settings": dict,
    "model": str,
    "prompt": str,
    "stop_type": str,
    "stopping_word": str,
    "timings": dict,
    "tokens_cached": int,
    "tokens_evaluated": int,
    "tokens_predicted": int,
    "truncated": bool,
    "has_new_line": bool,
    "index": int,
    "id_slot": int,
}
TIMINGS = ("prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second") + (
    "predicted_n",
    "predicted_ms",
    "predicted_per_token_ms",
    "predicted_per_second",
)
PIECE = {"index", "content", "tokens", "stop", "id_slot", "tokens_predicted", "tokens_evaluated"}


def is_whole(answer):
    assert set(answer) == set(MEMBERS), answer
    assert all(type(answer[k]) is kind for k, kind in MEMBERS.items()), answer
    assert answer["stop"] is True and answer["stop_type"] in ("eos", "limit", "word")
    assert all(answer["timings"][name] >= 0 for name in TIMINGS)
    assert answer["timings"]["predicted_n"] == answer["tokens_predicted"]
    assert answer["timings"]["prompt_n"] + answer["tokens_cached"] == answer["tokens_evaluated"]


def streamed(server, body, path=COMPLETION):
    """The pieces, and the whole objects at the end of each answer; nothing is behind the last."""
    status, headers, raw = server.request("POST", path, body | {"stream": True})
    assert status == 200 and headers["content-type"] == "text/event-stream", raw
    events = raw.decode().split("\n\n")
    assert events.pop() == ""
    events = [json.loads(e.removeprefix("data: ")) for e in events if not e.startswith(":")]
    assert events[-1]["stop"] is True
    return [e for e in events if not e["stop"]], [e for e in events if e["stop"]]


def lines(server, body):
    """The lines as they come."""
    raw = server.request("POST", COMPLETION, body | {"stream": True})[2].decode()
    return [json.loads(e[6:]) for e in raw.split("\n\n") if e.startswith("data: ")]


def ids_of(server, text):
    return server.ok("/tokenize", {"content": text, "add_special": True})["tokens"]


def text_of(server, tokens):
    return server.ok("/detokenize", {"tokens": tokens})["content"]


def test_an_answer_has_what_the_documentation_says(server):
    answer = server.ok(COMPLETION, GREEDY)
    is_whole(answer)
    assert (answer["stop_type"], answer["tokens"], answer["prompt"]) == ("limit", [], PROMPT)
    assert answer["model"] == "smollm2" and answer["truncated"] is False and answer["index"] == 0
    assert answer["tokens_evaluated"] == len(ids_of(server, PROMPT)) and answer["tokens_predicted"] == 8
    with_ids = server.ok(COMPLETION, GREEDY | {"return_tokens": True})
    assert len(with_ids["tokens"]) == 8 and text_of(server, with_ids["tokens"]) == answer["content"]


def test_a_stream_is_pieces_and_then_the_whole_without_text(server):
    whole = server.ok(COMPLETION, GREEDY | {"return_tokens": True})
    pieces, ends = streamed(server, GREEDY)
    assert all(set(p) == PIECE and p["tokens"] for p in pieces) and len(pieces) > 1 and len(ends) == 1
    assert "".join(p["content"] for p in pieces) == whole["content"]
    assert [t for p in pieces for t in p["tokens"]] == whole["tokens"]
    assert pieces[-1]["tokens_predicted"] == 8 and pieces[-1]["tokens_evaluated"] == whole["tokens_evaluated"]
    is_whole(ends[0])
    assert ends[0]["content"] == "" and ends[0]["tokens"] == []
    assert ends[0]["generation_settings"] == whole["generation_settings"] | {"stream": True}
    assert ends[0]["prompt"] == PROMPT and ends[0]["tokens_predicted"] == 8


def test_a_character_of_several_tokens_is_one_piece_with_all_of_them(server):
    body = GREEDY | {"prompt": "Carrots: 🥕🥕🥕🥕", "n_predict": 12, "grammar": 'root ::= "🥕🥕🥕"'}
    pieces, ends = streamed(server, body)
    assert "".join(p["content"] for p in pieces) == "🥕🥕🥕" and ends[0]["stop_type"] == "eos"
    assert all(text_of(server, p["tokens"]) == p["content"] for p in pieces) and len(pieces) == 3


SAMPLING = [
    {"temperature": 0},
    {"temperature": 0.9, "seed": 1},
    {"seed": 7, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "temperature": 1.3},
    {"seed": 7, "repeat_penalty": 1.3, "repeat_last_n": 32, "presence_penalty": 0.5, "frequency_penalty": 0.25},
    {"seed": 7, "logit_bias": [[260, -5.0], [28, False], [" the", -2]], "ignore_eos": True},
    {"seed": 7, "samplers": ["top_k", "temperature"], "top_k": 5, "typical_p": 0.5},
    {"seed": 7, "mirostat": 2, "mirostat_tau": 3},
    {"seed": 7, "dry_multiplier": 0.8, "dry_allowed_length": 1, "xtc_probability": 0.5},
    {"seed": 7, "grammar": 'root ::= [a-z ]+ "." '},
    {"temperature": 0, "json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
    {"seed": 7, "stop": ["e", "th"]},
    {"seed": 7, "cache_prompt": False},
]


@pytest.mark.parametrize("sampling", SAMPLING, ids=lambda s: "-".join(s))
def test_the_text_is_that_of_the_other_endpoint(server, sampling):
    """Bit for bit: ids, too; streamed and not."""
    body = {"prompt": PROMPT, "n_predict": 24} | sampling
    theirs = server.ok(TEXT, body | {"return_token_ids": True})
    choice = theirs["choices"][0]
    ours = server.ok(COMPLETION, body | {"return_tokens": True})
    assert (ours["content"], ours["tokens"]) == (choice["text"], choice["token_ids"])
    assert ours["tokens_predicted"] == theirs["usage"]["completion_tokens"]
    pieces, _ = streamed(server, body)
    assert "".join(p["content"] for p in pieces) == choice["text"]
    assert [t for p in pieces for t in p["tokens"]] == choice["token_ids"]


def test_a_prompt_has_many_forms(server):
    ids = ids_of(server, PROMPT)
    first, rest = ids[:2], text_of(server, ids[2:])
    wanted = server.ok(COMPLETION, GREEDY)["content"]
    one = [PROMPT, ids, [*first, rest], {"prompt_string": PROMPT}, {"prompt_string": [*first, rest]}, [PROMPT], [ids]]
    one += [{"prompt_string": PROMPT, "multimodal_data": []}, [[*first, rest]]]
    for prompt in one:
        answer = server.ok(COMPLETION, GREEDY | {"prompt": prompt})
        assert (answer["content"], answer["prompt"]) == (wanted, PROMPT), prompt
    several = server.ok(COMPLETION, GREEDY | {"prompt": [PROMPT, ids, [*first, rest], {"prompt_string": PROMPT}, "x"]})
    assert [a["content"] == wanted for a in several] == [True] * 4 + [False]
    assert [a["index"] for a in several] == [0, 1, 2, 3, 4] and several[4]["prompt"] == "x"
    for answer in several:
        is_whole(answer)


def test_names_of_special_tokens_are_these_tokens(server):
    start, *_ = ids_of(server, "<|im_start|>")
    answer = server.ok(COMPLETION, GREEDY | {"prompt": ["<|im_start|>user", 260, "<|im_start|>"]})
    assert answer["prompt"] == "<|im_start|>user the<|im_start|>"
    assert answer["tokens_evaluated"] == 4 and ids_of(server, answer["prompt"]).count(start) == 2


def test_several_answers_are_told_apart_in_a_stream(server):
    body = GREEDY | {"prompt": [PROMPT, "The capital of France is"], "n_cmpl": 2, "seed": 3, "temperature": 1}
    whole = server.ok(COMPLETION, body)
    assert [a["index"] for a in whole] == [0, 1, 2, 3] and whole[0]["content"] != whole[1]["content"]
    pieces, ends = streamed(server, body)
    assert sorted(e["index"] for e in ends) == [0, 1, 2, 3]
    for a in whole:
        assert "".join(p["content"] for p in pieces if p["index"] == a["index"]) == a["content"]
    choices = server.ok(TEXT, body | {"n": 2})["choices"]
    assert [c["text"] for c in choices] == [a["content"] for a in whole]


def test_no_tokens_wanted_computes_the_prompt(server):
    body = {"prompt": words(120, seed=4711), "n_predict": 0}
    first, second = server.ok(COMPLETION, body), server.ok(COMPLETION, body)
    for answer in (first, second):
        is_whole(answer)
        assert (answer["content"], answer["tokens_predicted"], answer["stop_type"]) == ("", 0, "limit")
    assert first["tokens_cached"] == 0 < second["tokens_cached"] == second["tokens_evaluated"]
    pieces, ends = streamed(server, body)
    assert pieces == [] and ends[0]["tokens_predicted"] == 0


def test_why_it_ended(server):
    chat = "<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n"
    eos = server.ok(COMPLETION, {"prompt": chat, "temperature": 0})  # without n_predict: to the end
    assert (eos["stop_type"], eos["stopping_word"], eos["truncated"]) == ("eos", "", False)
    assert eos["tokens_predicted"] < 100 and eos["prompt"] == chat
    body = {"prompt": "One line.\nOne line.\nOne line.\n", "temperature": 0, "n_predict": 30}
    assert server.ok(COMPLETION, body)["has_new_line"] and streamed(server, body)[1][0]["has_new_line"]
    word = server.ok(COMPLETION, body | {"stop": ["nowhere", "\n"]})
    assert (word["stop_type"], word["stopping_word"], word["has_new_line"]) == ("word", "\n", False)
    assert "\n" not in word["content"]
    pieces, ends = streamed(server, body | {"stop": ["nowhere", "\n"]})
    assert (ends[0]["stop_type"], ends[0]["stopping_word"]) == ("word", "\n")
    assert "".join(p["content"] for p in pieces) == word["content"]
    some = server.ok(COMPLETION, body | {"return_tokens": True})["tokens"][3]
    token = server.ok(COMPLETION, body | {"stop_token_ids": [some]})
    assert (token["stop_type"], token["stopping_word"]) == ("word", text_of(server, [some]))


def test_a_full_context_is_told_as_truncated(make_server):
    tiny = make_server("--threads", "1", "--kv-tokens", "1024", model=TINY)
    body = {"prompt": [5 + i % 80 for i in range(200)], "ignore_eos": True}
    full = tiny.ok(COMPLETION, body)
    assert (full["stop_type"], full["truncated"]) == ("limit", True)
    assert full["tokens_evaluated"] + full["tokens_predicted"] >= full["generation_settings"]["n_ctx"] == 256
    limit = tiny.ok(COMPLETION, body | {"n_predict": 5})
    assert (limit["stop_type"], limit["truncated"], limit["tokens_predicted"]) == ("limit", False, 5)
    shifted = tiny.ok(COMPLETION, body | {"n_predict": 100, "context_shift": True})
    assert (shifted["truncated"], shifted["tokens_predicted"]) == (True, 100)


def test_probabilities(server):
    body = GREEDY | {"n_probs": 3, "n_predict": 4}
    answer = server.ok(COMPLETION, body)
    tokens = answer.pop("completion_probabilities")
    is_whole(answer)
    assert len(tokens) == 4 and b"".join(bytes(t["bytes"]) for t in tokens).decode() == answer["content"]
    for t in tokens:
        assert set(t) == {"id", "token", "bytes", "logprob", "top_logprobs"} and len(t["top_logprobs"]) == 3
        assert all(set(a) == {"id", "token", "bytes", "logprob"} for a in t["top_logprobs"])
        assert t["top_logprobs"][0]["id"] == t["id"] and t["logprob"] <= 0
    pieces, ends = streamed(server, body)
    assert [t for p in pieces for t in p["completion_probabilities"]] == tokens
    assert all([t["id"] for t in p["completion_probabilities"]] == p["tokens"] for p in pieces)
    assert "completion_probabilities" not in ends[0] and ends[0]["generation_settings"]["n_probs"] == 3
    assert len(server.ok(COMPLETION, GREEDY | {"logprobs": 2})["completion_probabilities"][0]["top_logprobs"]) == 2


def test_settings_are_those_that_it_was_made_with(server):
    asked = {
        "n_predict": 3,
        "temperature": 0.5,
        "top_k": 11,
        "top_p": 0.75,
        "min_p": 0.125,
        "typical_p": 0.5,
        "repeat_penalty": 1.25,
        "repeat_last_n": 17,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "mirostat": 2,
        "dry_multiplier": 0.5,
        "dry_penalty_last_n": 9,
        "xtc_probability": 0.5,
        "seed": 2**40 + 1,
        "ignore_eos": True,
        "n_probs": 2,
        "stop": ["zzz", 'q"q'],
        "samplers": ["top_k", "temperature"],
        "timings_per_token": True,
    }
    settings = server.ok(COMPLETION, asked | {"prompt": "a", "logit_bias": [[5, 0.5]]})["generation_settings"]
    assert {k: settings[k] for k in asked} == asked
    assert settings["logit_bias"] == [{"bias": 0.5, "token": 5}] and settings["max_tokens"] == 3
    grammar = server.ok(COMPLETION, {"prompt": "a", "grammar": 'root ::= "b"'})
    assert grammar["content"] == "b" and grammar["generation_settings"]["grammar"] == 'root ::= "b"'
    assert grammar["generation_settings"]["n_predict"] == -1 and grammar["generation_settings"]["seed"] == 0xFFFFFFFF


def test_long_texts_of_a_request_are_not_repeated_for_each_answer(server):
    """A request of some kilobytes would be answered by gigabytes."""
    body = {
        "prompt": ["a"] * 64,
        "n_predict": 0,
        "stop": ["x" * 4000] * 64,
        "logit_bias": {str(i): 1 for i in range(4000)},
    }
    status, _, raw = server.request("POST", COMPLETION, body)
    assert status == 200 and len(raw) < 64 * 4096
    assert "stop" not in json.loads(raw)[0]["generation_settings"]


def test_only_the_fields_that_are_asked_for(server):
    fields = [
        "content",
        "generation_settings/n_predict",
        "timings/predicted_n",
        "no such",
        "prompt/x",
        "content",
        "stop/",
    ]
    for body, content in ((GREEDY, server.ok(COMPLETION, GREEDY)["content"]), (GREEDY | {"stream": True}, "")):
        body = body | {"response_fields": fields}
        whole = lines(server, body)[-1] if "stream" in body else server.ok(COMPLETION, body)
        assert whole == {"content": content, "generation_settings/n_predict": 8, "timings/predicted_n": 8}
    assert server.ok(COMPLETION, GREEDY | {"response_fields": ["no such"]}) == {}
    is_whole(server.ok(COMPLETION, GREEDY | {"response_fields": []}))
    assert server.post(COMPLETION, GREEDY | {"response_fields": ["a"] * 65})[1]["error"]["param"] == "response_fields"


def test_timings_and_progress_on_the_way(server):
    prompt = token_ids(900, seed=31)
    events = lines(server, GREEDY | {"prompt": prompt, "timings_per_token": True, "return_progress": True})
    told = [e["prompt_progress"] for e in events if "prompt_progress" in e]
    assert told[0]["processed"] == 0 and told[-1]["processed"] == told[-1]["total"] == 900
    assert [p["processed"] for p in told] == sorted(p["processed"] for p in told)
    timings = [e["timings"] for e in events if e["content"]]
    assert [t["predicted_n"] for t in timings] == sorted(t["predicted_n"] for t in timings) and timings[0][
        "prompt_ms"
    ] > 0
    assert all(t[name] >= 0 for t in timings for name in TIMINGS)
    assert timings[-1]["prompt_ms"] == events[-1]["timings"]["prompt_ms"]
    assert "timings" not in lines(server, GREEDY)[0]


def test_what_is_not_supported_is_ignored_and_told(server):
    more = {"id_slot": 0, "n_cache_reuse": 5, "min_keep": 1, "t_max_predict_ms": 5, "post_sampling_probs": True}
    status, headers, answer = server.request("POST", COMPLETION, GREEDY | more)
    assert status == 200 and set(headers["x-radish-ignored-fields"].split(", ")) == set(more)
    is_whole(json.loads(answer))
    assert "x-radish-ignored-fields" not in server.request("POST", COMPLETION, GREEDY)[1]


DEEP = b"[" * 100 + b"1" + b"]" * 100
REFUSED = {
    "no prompt": ({}, "prompt"),
    "null": ({"prompt": None}, "prompt"),
    "empty": ({"prompt": ""}, "prompt"),
    "empty list": ({"prompt": []}, "prompt"),
    "empty object": ({"prompt": {}}, "prompt"),
    "empty in a list": ({"prompt": ["a", ""]}, "prompt"),
    "lists of nothing": ({"prompt": [[], []]}, "prompt"),
    "nothing but an empty text": ({"prompt": [[""]]}, "prompt"),
    "another object": ({"prompt": {"text": "a"}}, "prompt"),
    "object in an object": ({"prompt": {"prompt_string": {"prompt_string": "a"}}}, "prompt"),
    "prompts in an object": ({"prompt": {"prompt_string": [["a"], ["b"]]}}, "prompt"),
    "pictures": ({"prompt": {"prompt_string": "<__media__>", "multimodal_data": ["aGk="]}}, "prompt"),
    "pictures as text": ({"prompt": {"prompt_string": "<__media__>", "multimodal_data": "aGk="}}, "prompt"),
    "list beside ids": ({"prompt": [1, [2]]}, "prompt"),
    "object beside ids": ({"prompt": [1, {"prompt_string": "a"}]}, "prompt"),
    "bool beside ids": ({"prompt": [1, True]}, "prompt"),
    "null beside texts": ({"prompt": ["a", None]}, "prompt"),
    "negative id": ({"prompt": [5, -1]}, "prompt"),
    "negative id beside a text": ({"prompt": ["a", -1]}, "prompt"),
    "fraction": ({"prompt": [5, 0.5]}, "prompt"),
    "id beyond 32 bits": ({"prompt": ["a", 2**40]}, "prompt"),
    "id beyond the vocabulary": ({"prompt": [5, 49152]}, "prompt"),
    "the same beside a text": ({"prompt": ["a", 49152]}, "prompt"),
    "10000 prompts": ({"prompt": ["a"] * 10000}, "prompt"),
    "prompts times answers": ({"prompt": ["a"] * 200, "n_cmpl": 16}, "prompt"),
    "longer than the context": ({"prompt": [5] * 9000}, "prompt"),
    "the same of texts and ids": ({"prompt": ["a b c", 5] * 3000}, "prompt"),
    "n_predict -2": ({"prompt": "a", "n_predict": -2}, "n_predict"),
    "n_predict 2^40": ({"prompt": "a", "n_predict": 2**40}, "n_predict"),
    "n_predict under another name": ({"prompt": "a", "max_tokens": 2**40}, "max_tokens"),
    "n_probs 10^9": ({"prompt": "a", "n_probs": 10**9}, "n_probs"),
    "n_probs -1": ({"prompt": "a", "n_probs": -1}, "n_probs"),
    "n_cmpl 0": ({"prompt": "a", "n_cmpl": 0}, "n_cmpl"),
    "n_cmpl 1000": ({"prompt": "a", "n_cmpl": 1000}, "n_cmpl"),
    "temperature text": ({"prompt": "a", "temperature": "hot"}, "temperature"),
    "stream text": ({"prompt": "a", "stream": "yes"}, "stream"),
    "stop number": ({"prompt": "a", "stop": 5}, "stop"),
    "grammar": ({"prompt": "a", "grammar": "root ::= no"}, "grammar"),
    "json_schema": ({"prompt": "a", "json_schema": {"type": "objects"}}, "json_schema"),
    "logit_bias": ({"prompt": "a", "logit_bias": [[49152, 1]]}, "logit_bias"),
    "lora": ({"prompt": "a", "lora": [{"id": 5, "scale": 1}]}, "lora"),
}
REFUSED_RAW = {
    "deep": (b'{"prompt":' + DEEP + b"}", "prompt"),
    "too deep": (b'{"prompt":' + b"[" * 1000 + b"]" * 1000 + b"}", "prompt"),
    "deep objects": (b'{"prompt":' + b'{"prompt_string":' * 60 + b"1" + b"}" * 60 + b"}", "prompt"),
    "NaN": (b'{"prompt":"a","temperature":NaN}', "temperature"),
    "NaN in a prompt": (b'{"prompt":[NaN]}', "prompt"),
    "infinite": (b'{"prompt":"a","min_p":1e999}', "min_p"),
    "id of 30 digits": (b'{"prompt":[123456789012345678901234567890]}', "prompt"),
    "half a character": (b'{"prompt":"\xff"}', "prompt"),
}


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("name", [*REFUSED, *REFUSED_RAW])
def test_bad_input_names_the_field(server, name, stream):
    raw, param = REFUSED_RAW[name] if name in REFUSED_RAW else (json.dumps(REFUSED[name][0]).encode(), REFUSED[name][1])
    if stream:
        raw = (
            raw[:-1] + (b"," if len(raw) > 2 else b"") + (b'"stream":true}' if name != "stream text" else b'"top_k":1}')
        )
    status, answer = server.post(COMPLETION, raw)
    assert status == 400 and set(answer["error"]) == {"message", "type", "param", "code"}, answer
    assert answer["error"]["param"] == param and answer["error"]["type"] == "invalid_request_error", answer


def test_the_path_that_two_apis_have(server):
    """Without /v1 it is either's: n_predict is llama-server's field."""
    its = server.ok("/completions", GREEDY)
    is_whole(its)
    ours = server.ok("/completions", {"prompt": PROMPT, "max_tokens": 8, "temperature": 0})
    assert ours["object"] == "text_completion" and ours["choices"][0]["text"] == its["content"]
    assert server.ok("/completions", {"prompt": 'say "n_predict"', "max_tokens": 1})["object"] == "text_completion"
    assert server.post("/completions", {"n_predict": -5, "prompt": "a"})[1]["error"]["param"] == "n_predict"
    assert server.ok(TEXT, GREEDY)["object"] == "text_completion"
    assert server.post("/completions", b'{"n_predict":')[0] == 400


def test_the_cache_is_asked_and_filled_with_its_bodies(server):
    body = GREEDY | {"prompt": [words(40, seed=815), *token_ids(40, seed=9)], "return_tokens": True}
    explain = lambda: server.ok("/v1/cache/explain", body)
    cold = explain()
    warmed = server.ok("/v1/cache/warm", body)
    assert cold["stored_tokens"] < cold["prompt_tokens"] == warmed["prompt_tokens"] == explain()["stored_tokens"]
    answer = server.ok(COMPLETION, body)
    assert answer["tokens_evaluated"] == cold["prompt_tokens"] and answer["tokens_cached"] > 70
    bad = server.post("/v1/cache/explain", {"prompt": [1, [2]], "n_predict": 1})
    assert bad[0] == 400 and bad[1]["error"]["param"] == "prompt"
    gap = server.post("/v1/cache/explain", {"input_prefix": "a"})
    assert gap[0] == 400 and "middle" in gap[1]["error"]["message"]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_leaving_ends_it(small, stream):
    before = small.stats()["requests"]["cancelled"]
    body = {"prompt": [token_ids(6, seed=i) for i in range(9)], "ignore_eos": True, "stream": stream}
    with small.open_request(COMPLETION, body):
        small.wait_until(lambda: small.stats()["requests"]["decode"] == 2)
    small.wait_until(lambda: small.stats()["requests"]["cancelled"] >= before + 2)
    small.wait_idle()
    is_whole(small.ok(COMPLETION, GREEDY))


def test_many_at_once_answer_as_one_alone(server):
    bodies = [
        GREEDY | {"prompt": words(12, seed=i), "seed": i, "temperature": 1, "return_tokens": True} for i in range(12)
    ]
    alone = [server.ok(COMPLETION, b | {"cache_prompt": False})["tokens"] for b in bodies]
    together = [None] * len(bodies)

    def ask(i):
        together[i] = server.ok(COMPLETION, bodies[i])["tokens"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(bodies))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert together == alone


# ---- POST /embedding ----


def test_vectors_are_those_of_the_other_endpoint(server):
    texts = ["a cat", "a dog"]
    wanted = [d["embedding"] for d in server.ok("/v1/embeddings", {"input": texts})["data"]]
    assert server.ok("/embedding", {"content": texts}) == [{"index": i, "embedding": [v]} for i, v in enumerate(wanted)]
    assert server.ok("/embedding", {"content": texts[0]}) == [{"index": 0, "embedding": wanted[:1]}]
    assert server.ok("/embedding", {"input": ids_of(server, texts[1])}) == [{"index": 0, "embedding": wanted[1:]}]
    more = {"embd_normalize": 2, "dimensions": 3, "encoding_format": "base64"}
    status, headers, raw = server.request("POST", "/embedding", {"content": texts[0]} | more)
    assert status == 200 and json.loads(raw)[0]["embedding"] == wanted[:1]
    assert set(headers["x-radish-ignored-fields"].split(", ")) == set(more)


@pytest.mark.parametrize(
    "body, param",
    [
        ({}, "content"),
        ({"content": ""}, "content"),
        ({"content": []}, "content"),
        ({"content": {"prompt_string": "a"}}, "content"),
        ({"content": ["a", 5]}, "content"),
        ({"content": [49152]}, None),
        ({"input": [[-1]]}, "input"),
        ({"input": ["a"] * 10000}, "input"),
        ({"content": [5] * 9000}, None),
    ],
)
def test_bad_texts_name_the_field(server, body, param):
    status, answer = server.post("/embedding", body)
    assert status == 400 and (param is None or answer["error"]["param"] == param), answer


# ---- GET /slots ----


def slots_of(s, **more):
    status, answer = s.get("/slots", **more)
    assert status == 200, answer
    assert [a["id"] for a in answer] == list(range(s.get("/props", **more)[1]["total_slots"]))
    return answer


def busy(s):
    return [a for a in slots_of(s) if a["is_processing"]]


def test_slots_are_as_many_as_may_run(small):
    small.wait_idle()
    small.wait_until(lambda: not busy(small))
    first, second = slots_of(small)
    assert first == {"id": 0, "n_ctx": first["n_ctx"], "speculative": False, "is_processing": False}
    assert second == first | {"id": 1} and first["n_ctx"] > 1000
    assert small.get("/slots?fail_on_no_slot=1")[0] == 200


def test_a_running_request_is_told_in_its_slot(small):
    secret = "the password is swordfish"
    body = {"prompt": secret, "n_predict": 3000, "ignore_eos": True, "temperature": 0}
    with small.open_request(COMPLETION, body):
        small.wait_until(lambda: any(a["next_token"][0]["n_decoded"] > 3 for a in busy(small) if "next_token" in a))
        (slot,) = busy(small)
        (next_token,) = slot["next_token"]
        assert slot["id"] == 0 and slot["params"] == {"n_predict": 3000, "max_tokens": 3000}
        assert slot["n_prompt_tokens"] == len(ids_of(small, secret))
        assert slot["n_prompt_tokens_processed"] + slot["n_prompt_tokens_cache"] == slot["n_prompt_tokens"]
        assert next_token["has_next_token"] and next_token["n_remain"] + next_token["n_decoded"] == 3000
        (told,) = small.get("/v1/monitor")[1]["running"]
        assert told["id"] == slot["id_task"] and "swordfish" not in json.dumps(slots_of(small))
        assert small.get("/slots?fail_on_no_slot=1")[0] == 200
    small.wait_idle()
    small.wait_until(lambda: not busy(small))


def test_no_slot_is_free(small):
    """The third waits: it has no slot."""
    body = {"n_predict": -1, "ignore_eos": True}
    asked = [small.open_request(COMPLETION, body | {"prompt": token_ids(6, seed=70 + i)}) for i in range(3)]
    small.wait_until(lambda: small.stats()["requests"]["queued"] == 1 and small.stats()["requests"]["decode"] == 2)
    small.wait_until(lambda: all("params" in a for a in busy(small)))
    assert len(busy(small)) == len(slots_of(small)) == 2
    assert all(a["params"]["n_predict"] == -1 and a["next_token"][0]["n_remain"] == -1 for a in busy(small))
    for query in ("?fail_on_no_slot=1", "?a=b&fail_on_no_slot=true", "?fail_on_no_slot=1&c"):
        status, answer = small.get("/slots" + query)
        assert status == 503 and answer["error"]["type"] == "unavailable_error", answer
        assert "no slot" in answer["error"]["message"]
    for query in (
        "",
        "?",
        "?fail_on_no_slot",
        "?fail_on_no_slot=",
        "?fail_on_no_slot=0",
        "?xfail_on_no_slot=1",
        "?&&&",
    ):
        assert small.get("/slots" + query)[0] == 200, query
    for s in asked:
        s.close()
    small.wait_idle()
    assert small.get("/slots?fail_on_no_slot=1")[0] == 200


def test_slots_of_all_tenants_are_shown_to_the_server_s_own_key_alone(tenants):
    s, alice, bob, own = tenants
    assert s.request("GET", "/slots")[0] == 401
    for query in ("", "?fail_on_no_slot=1"):
        assert s.request("GET", "/slots" + query, headers=alice)[0] == 403
        assert s.request("GET", "/slots" + query, headers=bob)[0] == 403
    assert not any(a["is_processing"] for a in slots_of(s, headers=own))


def test_slots_are_read_only(small):
    assert small.request("POST", "/slots", {})[0] == 405
    assert small.request("POST", "/slots/0?action=erase", {})[0] == 404
    assert small.request("HEAD", "/slots")[0] == 200
