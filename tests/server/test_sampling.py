"""Sampling parameters through HTTP: same seed same text whatever runs beside it, every shape and alias, stop strings."""

import threading

import pytest
from radish_server import TINY

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
PROMPT = "One two three four. One two three four. One two"
WAYS = [
    {"top_k": 40, "top_p": 0.9, "min_p": 0.02},
    {"typical_p": 0.8},
    {"top_n_sigma": 1.2},
    {"xtc_probability": 0.6, "xtc_threshold": 0.05},
    {"dry_multiplier": 0.8, "dry_allowed_length": 1, "dry_sequence_breakers": ["\n", " four"]},
    {"mirostat": 2, "mirostat_tau": 3},
    {"dynatemp_range": 0.5, "dynatemp_exponent": 1.3},
    {
        "samplers": ["temperature", "penalties", "min_p", "xtc"],
        "repeat_penalty": 1.2,
        "repeat_last_n": 16,
        "min_p": 0.1,
    },
    {"bad_words": ["three", "two four"], "frequency_penalty": 0.4},
]


def text_of(server, **ask):
    return server.ok(TEXT, {"prompt": PROMPT, "max_tokens": 14, "temperature": 0.9, "seed": 11} | ask)["choices"][0][
        "text"
    ]


def test_the_text_is_the_same_cold_cached_together_and_without_drafts(server):
    cold = [text_of(server, **way, cache_prompt=False) for way in WAYS]
    assert [text_of(server, **way) for way in WAYS] == cold
    assert [text_of(server, **way, speculation=False) for way in WAYS] == cold
    together = [None] * len(WAYS)

    def one(i):
        together[i] = text_of(server, **WAYS[i])

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(WAYS))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert together == cold
    assert len(set(cold)) > 4  # each way does something


def test_seeds_are_any_64_bit_integer_and_minus_one_is_random(server):
    for seed in (2**63 - 1, -(2**63), 2**53 + 1, 0, -2):
        assert text_of(server, seed=seed, temperature=2) == text_of(server, seed=seed, temperature=2)
    assert text_of(server, seed=2**53, temperature=2) != text_of(server, seed=2**53 + 1, temperature=2)
    assert len({text_of(server, seed=-1, temperature=2) for _ in range(3)}) > 1
    assert server.post(TEXT, {"prompt": PROMPT, "seed": 2**63})[1]["error"]["param"] == "seed"


def test_what_clients_send_for_no_form_is_none(server):
    none = {
        "grammar": "",
        "json_schema": {},
        "guided_json": None,
        "guided_choice": [],
        "structured_outputs": {"json": None},
        "regex": "",
    }
    server.ok(TEXT, {"prompt": PROMPT, "max_tokens": 1} | none)


def test_repetitions_are_drafted_and_verified_with_a_memory(server):
    for way in (
        {"dry_multiplier": 0.1, "dry_allowed_length": 12},
        {"repeat_penalty": 1.01},
        {"mirostat": 2, "mirostat_tau": 0.5},
    ):
        ask = {"prompt": PROMPT * 4, "max_tokens": 40, "temperature": 0.2, "seed": 5} | way
        texts = [server.ok(TEXT, ask | {"speculation": on})["choices"][0]["text"] for on in (False, True, True)]
        assert texts[0] == texts[1] == texts[2]


def test_the_order_of_samplers_in_every_form(server):
    ask = {"top_k": 5, "temperature": 1.3, "min_p": 0.1}
    want = text_of(server, samplers=["top_k", "min_p", "temperature"], **ask)
    for form in ("kmt", "top_k;min_p;temperature", "top-k,min-p,temp", ["top-k", "infill", "min_p", "temperature"]):
        assert text_of(server, samplers=form, **ask) == want
    assert text_of(server, samplers="k", top_k=1, temperature=0.5) == text_of(server, temperature=0)
    assert text_of(server, samplers=[], top_k=1) != text_of(server, temperature=0)  # nothing is cut
    for bad in (["top_q"], "kqt", "top_k;x", [1], 5, "e" * 17):
        status, r = server.post(TEXT, {"prompt": "a", "samplers": bad})
        assert status == 400 and r["error"]["param"] == "samplers", bad


def test_biases_in_both_shapes(server):
    paris = server.ok("/tokenize", {"prompt": " Paris", "add_special_tokens": False})["tokens"]
    assert len(paris) == 1
    ask = {"prompt": "The capital of France is", "max_tokens": 1, "temperature": 0}
    best = server.ok(TEXT, ask)["choices"][0]["text"]
    assert best == " Paris"
    for never in (
        {str(paris[0]): -100},
        [[paris[0], False]],
        [[paris[0], -100]],
        [[" Paris", False]],
        {" Paris": -100},
    ):
        assert server.ok(TEXT, ask | {"logit_bias": never})["choices"][0]["text"] != " Paris", never
    only = server.ok(TEXT, ask | {"max_tokens": 3, "logit_bias": [[paris[0], 100]]})["choices"][0]["text"]
    assert only == " Paris" * 3
    for bad in ([[1]], [["", 1]], [[1, "x"]], {"1": 101}, {"": 1}, [[-1, 1]], [[10**6, 1]], "x", [[1, True]]):
        status, r = server.post(TEXT, ask | {"logit_bias": bad})
        assert status == 400 and r["error"]["param"] == "logit_bias", bad


def test_words_and_tokens_that_may_and_may_not_come(server):
    ask = {"prompt": "The capital of France is", "max_tokens": 12, "temperature": 0}
    assert "Paris" in server.ok(TEXT, ask)["choices"][0]["text"]
    assert "Paris" not in server.ok(TEXT, ask | {"bad_words": ["Paris"]})["choices"][0]["text"]
    ids = server.ok("/tokenize", {"prompt": " red blue green", "add_special_tokens": False})["tokens"]
    text = server.ok(TEXT, ask | {"allowed_token_ids": ids, "temperature": 2})["choices"][0]["text"]
    assert set(text.split()) <= {"red", "blue", "green"} and len(text.split()) == 12
    for name, bad in (
        ("allowed_token_ids", []),
        ("allowed_token_ids", [10**7]),
        ("bad_words", [""]),
        ("bad_words", "x"),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", 3),
        ("dry_sequence_breakers", [1]),
    ):
        status, r = server.post(TEXT, ask | {name: bad})
        assert status == 400 and r["error"]["param"] == name, (name, bad)


def test_what_leaves_nothing_to_draw_is_the_requests_fault(make_server):
    """Not the model's: its numbers are sound, and are not counted as broken."""
    s = make_server("--threads", "1", "--kv-tokens", "1024", model=TINY)
    ask = {"prompt": "a b", "max_tokens": 4, "temperature": 0}
    none, digits = (
        [[i, False] for i in range(96)],
        [[t, False] for t in s.ok("/tokenize", {"content": "0123456789"})["tokens"]],
    )
    for field, body in (
        ("logit_bias", {"logit_bias": none}),
        ("logit_bias", {"logit_bias": none, "temperature": 1, "samplers": ["top_k"], "top_k": 1}),
        ("logit_bias", {"logit_bias": digits, "regex": "[0-9]{3}"}),
        ("allowed_token_ids", {"allowed_token_ids": [65], "regex": "[0-9]{3}"}),
        ("bad_words", {"bad_words": list("0123456789"), "regex": "[0-9]{3}"}),
    ):
        status, r = s.post(TEXT, ask | body)
        assert (status, r["error"]["param"]) == (400, field) and "nothing is left to draw" in r["error"]["message"], r
        assert ("form" in r["error"]["message"]) and r["error"]["type"] == "invalid_request_error"
    counts = dict(x.rsplit(" ", 1) for x in s.request("GET", "/metrics")[2].decode().splitlines() if x[0] != "#")
    assert next(v for k, v in counts.items() if k.startswith("radish_requests_corrupted_total")) == "0"


def finished(server, **ask):
    """(text, choice); the stream says the same."""
    ask = {"temperature": 0, "max_tokens": 28} | ask
    plain = server.ok(TEXT, ask)["choices"][0]
    chunks = [c["choices"][0] for c in server.stream(TEXT, ask) if c["choices"]]
    assert "".join(c["text"] for c in chunks) == plain["text"]
    assert (chunks[-1]["finish_reason"], chunks[-1]["stop_reason"]) == (plain["finish_reason"], plain["stop_reason"])
    return plain["text"], plain


@pytest.mark.parametrize("prompt", ["Once upon a time", "Grüße, naïve café: 😀 😃 😄 😀 😃 😄 😀 😃 😄 😀"])
def test_no_part_of_a_stop_string_leaves(server, prompt):
    whole, _ = finished(server, prompt=prompt)
    assert len(whole) > 14
    for begin, n in ((3, 1), (9, 4), (6, len(whole) - 8)):  # inside tokens and across them
        stop = whole[begin : begin + n]
        if "\ufffd" in stop:
            continue
        want = whole[: whole.find(stop)]
        text, choice = finished(server, prompt=prompt, stop=["never seen", stop])
        assert text == want and choice["finish_reason"] == "stop" and choice["stop_reason"] == stop
        assert finished(server, prompt=prompt, stop=stop, include_stop_str_in_output=True)[0] == want + stop
    near = whole[2:12] + "\u0001"  # begins like the text and never comes
    assert finished(server, prompt=prompt, stop=near)[0] == whole


def test_tokens_that_stop_and_how_early(server):
    prompt = "Once upon a time"
    whole = server.ok(
        TEXT, {"prompt": prompt, "temperature": 0, "max_tokens": 28, "logprobs": 0, "return_token_ids": True}
    )
    ids, words = whole["choices"][0]["token_ids"], whole["choices"][0]["logprobs"]["tokens"]
    at = next(i for i in range(4, len(ids)) if ids[i] not in ids[:i])
    text, choice = finished(server, prompt=prompt, stop_token_ids=[ids[at]], ignore_eos=True)
    assert text == "".join(words[:at]) and choice["stop_reason"] == ids[at] and choice["finish_reason"] == "stop"
    text, _ = finished(server, prompt=prompt, stop_token_ids=[ids[at]], include_stop_str_in_output=True)
    assert text == "".join(words[: at + 1])
    r = server.ok(
        TEXT, {"prompt": prompt, "temperature": 0, "max_tokens": 30, "stop_token_ids": [ids[at]], "min_tokens": at + 5}
    )
    assert r["usage"]["completion_tokens"] >= at + 5  # before that it is not even drawn
    late = server.ok(TEXT, {"prompt": prompt, "temperature": 0, "max_tokens": 30, "stop": words[at], "min_tokens": 25})
    assert late["choices"][0]["text"].startswith("".join(words[:25])) and late["usage"]["completion_tokens"] >= 25
    status, r = server.post(TEXT, {"prompt": prompt, "max_tokens": 4, "min_tokens": 5})
    assert status == 400 and r["error"]["param"] == "min_tokens"
    end = {"messages": [{"role": "user", "content": "Say yes."}], "temperature": 0, "max_tokens": 40}
    assert server.ok(CHAT, end | {"min_tokens": 38})["usage"]["completion_tokens"] >= 38


def check_prompt_logprobs(entries, n_top):
    assert entries[0] is None
    for entry in entries[1:]:
        own, *others = entry.values()
        assert set(own) == {"logprob", "rank", "decoded_token"} and own["logprob"] <= 0 and own["rank"] >= 1
        by_rank = sorted(entry.values(), key=lambda v: v["rank"])
        assert len(entry) == n_top + (own["rank"] > n_top)
        assert [v["rank"] for v in by_rank[:n_top]] == list(range(1, n_top + 1))
        assert all(a["logprob"] >= b["logprob"] for a, b in zip(by_rank, by_rank[1:]))


def test_log_probabilities_of_the_prompt(server):
    ask = {"prompt": PROMPT, "max_tokens": 2, "temperature": 0, "prompt_logprobs": 3, "n": 2}
    r = server.ok(TEXT, ask)
    ids = server.ok("/tokenize", {"prompt": PROMPT})["tokens"]
    for c in r["choices"]:
        assert c["logprobs"] is None
        check_prompt_logprobs(c["prompt_logprobs"], 3)
        assert [next(iter(e)) for e in c["prompt_logprobs"][1:]] == [str(i) for i in ids[1:]]
    with_both = server.ok(TEXT, ask | {"logprobs": 1, "n": 1})["choices"][0]
    assert with_both["prompt_logprobs"] == r["choices"][0]["prompt_logprobs"]
    assert all(len(t) == 1 for t in with_both["logprobs"]["top_logprobs"])
    echoed = server.ok(TEXT, {"prompt": PROMPT, "max_tokens": 0, "echo": True, "logprobs": 0})["choices"][0]["logprobs"]
    own = [next(iter(e.values()))["logprob"] for e in with_both["prompt_logprobs"][1:]]
    assert own == echoed["token_logprobs"][1:]
    chat = server.ok(CHAT, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "prompt_logprobs": 0})
    check_prompt_logprobs(chat["prompt_logprobs"], 0)
    assert "prompt_logprobs" not in server.ok(TEXT, {"prompt": "a", "max_tokens": 1})["choices"][0]
    status, r = server.post(TEXT, ask | {"stream": True})
    assert status == 400 and r["error"]["param"] == "prompt_logprobs"


def test_choices_share_the_prompt(server):
    ask = {"prompt": "A tale of choices: " + PROMPT * 12, "max_tokens": 8, "temperature": 1.2, "n": 4, "seed": 3}
    before = server.stats()["tokens"]["prompt_computed"]
    r = server.ok(TEXT, ask)
    assert server.stats()["tokens"]["prompt_computed"] - before <= r["usage"]["prompt_tokens"] + 4 * 32
    assert len({c["text"] for c in r["choices"]}) == 4 and r["usage"]["completion_tokens"] == 32
    chunks = [c for c in server.stream(TEXT, ask) if c["choices"]]
    for c in r["choices"]:
        mine = [x["choices"][0] for x in chunks if x["choices"][0]["index"] == c["index"]]
        assert "".join(x["text"] for x in mine) == c["text"] and mine[-1]["finish_reason"] == c["finish_reason"]
    alone = server.ok(TEXT, ask | {"n": 1})["choices"][0]["text"]
    assert alone == r["choices"][0]["text"]


def test_aliases_mean_the_same(server):
    for a, b in (
        ({"repeat_penalty": 1.4}, {"repetition_penalty": 1.4}),
        ({"typ_p": 0.5}, {"typical_p": 0.5}),
        ({"min_new_tokens": 9}, {"min_tokens": 9}),
        ({"tfs_z": 0.5}, {}),
    ):
        assert text_of(server, **a) == text_of(server, **b)
    cut = {"stop": "four", "temperature": 0}
    assert text_of(server, no_stop_trim=True, **cut) == text_of(server, **cut) + "four"
    for name in ("n_predict", "max_completion_tokens", "max_tokens"):
        assert server.ok(TEXT, {"prompt": PROMPT, name: 3, "temperature": 0})["usage"]["completion_tokens"] == 3
    probs = server.ok(TEXT, {"prompt": PROMPT, "max_tokens": 2, "temperature": 0, "n_probs": 2})["choices"][0][
        "logprobs"
    ]
    assert all(len(t) == 2 for t in probs["top_logprobs"])


def test_numbers_out_of_range_are_named(server):
    for name, bad in (
        ("typical_p", 1.1),
        ("typical_p", "x"),
        ("top_n_sigma", -2),
        ("xtc_probability", 2),
        ("xtc_threshold", -1),
        ("dynatemp_range", -1),
        ("dry_multiplier", -1),
        ("dry_base", 101),
        ("dry_allowed_length", -1),
        ("dry_penalty_last_n", -2),
        ("repeat_last_n", 1.5),
        ("mirostat", 1),
        ("mirostat", 3),
        ("mirostat_eta", 2),
        ("min_tokens", -1),
        ("prompt_logprobs", 21),
        ("n_probs", 21),
        ("include_stop_str_in_output", 1),
    ):
        status, r = server.post(TEXT, {"prompt": "a", "max_tokens": 1, name: bad})
        assert status == 400 and r["error"]["param"] == name, (name, bad)


def test_token_ids_are_returned(server):
    ids = server.ok("/tokenize", {"prompt": PROMPT})["tokens"]
    ask = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0, "return_token_ids": True, "n": 2}
    choices = server.ok(TEXT, ask)["choices"]
    for c in choices:
        assert c["prompt_token_ids"] == ids and len(c["token_ids"]) == 6
        assert server.ok("/detokenize", {"tokens": c["token_ids"]})["prompt"] == c["text"]
    chunks = [c["choices"][0] for c in server.stream(TEXT, ask) if c["choices"]]
    for i in range(2):
        mine = [c for c in chunks if c["index"] == i]
        assert sum((c["token_ids"] for c in mine), []) == choices[i]["token_ids"]
        assert [c["prompt_token_ids"] for c in mine if "prompt_token_ids" in c] == [ids]
    chat = {
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 3,
        "temperature": 0,
        "return_token_ids": True,
    }
    whole = server.ok(CHAT, chat)
    chunks = server.stream(CHAT, chat)
    assert (
        len(whole["choices"][0]["token_ids"]) == 3 and len(whole["prompt_token_ids"]) == whole["usage"]["prompt_tokens"]
    )
    assert [c["prompt_token_ids"] for c in chunks if "prompt_token_ids" in c] == [whole["prompt_token_ids"]]
    assert sum((c["choices"][0]["token_ids"] for c in chunks if c["choices"]), []) == whole["choices"][0]["token_ids"]
