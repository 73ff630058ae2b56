"""Adapters (LoRA) together with everything else a request may ask for: drafts, forms, a context that shifts, images, and clients
that load, unload and scale what others use."""

import contextlib
import json
import re
import subprocess
import threading

import pytest
from lora_files import write_peft
from radish_server import BUILD, TINY, Server
from vision_model import make_model, picture, url

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
ASK = {"max_tokens": 48, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
SORTS = ("tiny-llama", "pirate", "poet")
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lora")
    return {name: write_peft(folder / name, seed) for seed, name in enumerate(("pirate", "poet", "clerk"))}


def flags(files):
    loras = [f"{name}={files[name]}" for name in ("pirate", "poet")]
    return [*(x for f in loras for x in ("--lora", f)), "--lora-dir", str(files["clerk"].parent), "--threads", "1"]


@pytest.fixture(scope="module")
def s(files):
    s = Server(*flags(files), "--kv-tokens", "16384", model=TINY)
    yield s
    assert s.stats()["engine"]["accounting_errors"] == 0
    assert s.stop() == 0


def ids(s, model, prompt, **more):
    return s.ok(TEXT, ASK | {"model": model, "prompt": prompt} | more)["choices"][0]["token_ids"]


def together(*asks):
    """What each gives, all at once."""
    results = [None] * len(asks)

    def run(i):
        results[i] = asks[i]()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(asks))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return results


def test_drafts_of_a_smaller_model_and_of_text_change_no_adapters_answer(s, files):
    """The draft model is the base, without the adapter: its guesses are often wrong."""
    prompt = [3, 4, 5, 6] * 20
    alone = {n: ids(s, n, prompt, speculation=False, cache_prompt=False) for n in SORTS}
    assert len(set(map(tuple, alone.values()))) == 3
    for n in SORTS:
        assert ids(s, n, prompt) == alone[n]
    drafting = Server(*flags(files), "--kv-tokens", "8192", "--draft", str(TINY), model=TINY)
    try:
        for n in SORTS:
            assert ids(drafting, n, prompt) == alone[n], n
        got = together(*(lambda n=n: ids(drafting, n, prompt, cache_prompt=False) for n in SORTS * 3))
        assert got == [alone[n] for n in SORTS * 3]
    finally:
        assert drafting.stop() == 0


def test_a_form_holds_and_the_answer_is_the_adapters_own(s):
    ask = ASK | {"messages": [{"role": "user", "content": "abc"}], "regex": "[a-e]{8,40}", "max_tokens": 40}
    del ask["ignore_eos"]

    def text(n, **more):
        return s.ok(CHAT, ask | {"model": n} | more)["choices"][0]["message"]["content"]

    alone = {n: text(n, speculation=False, cache_prompt=False) for n in SORTS}
    assert len(set(alone.values())) > 1
    assert all(re.fullmatch("[a-e]{8,40}", x) for x in alone.values())
    assert together(*(lambda n=n: text(n) for n in SORTS * 3)) == [alone[n] for n in SORTS * 3]


def test_a_context_that_shifts_goes_on_with_its_adapter(s):
    """Each part is what its shorter prompt gives with that adapter; the others in the batch notice nothing."""
    prompt = [(i * 37) % 90 + 3 for i in range(100)]

    def shifted(n, **more):
        body = s.ok(TEXT, ASK | {"model": n, "prompt": prompt, "max_tokens": 600, "context_shift": True} | more)
        assert body["timings"]["context_shifts"] > 2
        return body["choices"][0]["token_ids"]

    def by_hand(n):
        now, out = list(prompt), []
        while len(out) < 600:
            part = ids(s, n, now, max_tokens=600 - len(out), cache_prompt=False, speculation=False)
            out, now = out + part, now + part
            now = now[(len(now)) // 2 :]
        return out

    want = {n: by_hand(n) for n in SORTS}
    assert len(set(map(tuple, want.values()))) == 3
    for n in SORTS:
        assert shifted(n, n_keep=0, cache_prompt=False) == want[n], n
    assert together(*(lambda n=n: shifted(n, n_keep=0) for n in SORTS * 2)) == [want[n] for n in SORTS * 2]


def live(s, body):
    """The events of a stream, each when it comes."""
    with contextlib.closing(s.connect()) as c:
        c.request("POST", TEXT, json.dumps(body | {"stream": True}), {"Content-Type": "application/json"})
        r = c.getresponse()
        assert r.status == 200
        for line in r:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])


@pytest.mark.parametrize("where", [0, 1, 20])
def test_unloaded_while_it_streams_the_answer_ends_with_it(s, where):
    """Even where another has its name by then. The stream is long, so that it runs when the name goes: on a busy machine a
    longer one."""
    running = 0
    for n_tokens in (2000, 8000, 32000):
        if running:
            break
        ask = ASK | {"model": "clerk", "prompt": [5, 6, 7] * 20, "max_tokens": n_tokens, "context_shift": True}
        s.ok(LOAD, {"lora_name": "clerk", "lora_path": "clerk"})
        try:
            whole = s.ok(TEXT, ask | {"cache_prompt": False})["choices"][0]["text"]
            text, n = "", 0
            for event in live(s, ask | {"cache_prompt": False}):
                if n == where:
                    assert s.ok(UNLOAD, {"lora_name": "clerk"})["success"]
                    assert s.post(TEXT, ask)[0] == 404
                    s.ok(LOAD, {"lora_name": "clerk", "lora_path": "poet"})
                    running = s.stats()["requests"]["decode"]
                n += 1
                text += event["choices"][0]["text"] if event.get("choices") else ""
            assert text == whole
            assert ids(s, "clerk", [9] * 8) == ids(s, "poet", [9] * 8)
        finally:
            s.post(UNLOAD, {"lora_name": "clerk"})
    assert running == 1


def test_of_two_that_load_one_name_at_once_one_does(s):
    """Never half of each: what answers to the name is one file or the other."""
    prompt = [9, 8, 7] * 12
    may = [ids(s, "pirate", prompt), ids(s, "poet", prompt)]
    for _ in range(12):
        got = together(
            *(lambda f=f: s.post(LOAD, {"lora_name": "same", "lora_path": f}) for f in ("pirate", "poet") * 3)
        )
        assert sorted(status for status, _ in got) == [200] + [400] * 5, got
        won = ("pirate", "poet").index(["pirate", "poet"][[status for status, _ in got].index(200) % 2])
        assert ids(s, "same", prompt) == may[won]
        gone = together(*(lambda: s.post(UNLOAD, {"lora_name": "same"}) for _ in range(4)))
        assert sorted(status for status, _ in gone) == [200] + [404] * 3
    assert [a["name"] for a in s.get("/lora-adapters")[1]] == ["pirate", "poet"]


@pytest.mark.parametrize(
    "scale", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", '"1"', "null", "true", "[]", "1e39"]
)
def test_a_scale_that_is_no_number_is_refused(s, scale):
    for path, body in (
        (TEXT, '{"prompt": "abc", "max_tokens": 2, "lora": [{"id": 0, "scale": %s}]}'),
        ("/lora-adapters", '[{"id": 0, "scale": %s}]'),
        (LOAD, '{"lora_name": "x", "lora_path": "clerk", "scale": %s}'),
    ):
        status, _, raw = s.request("POST", path, (body % scale).encode())
        if scale == "null" and status == 200:  # as if it were not there
            s.request("POST", UNLOAD, b'{"lora_name": "x"}')
            continue
        assert status == 400 and b"error" in raw, (path, raw)
    assert len(s.get("/lora-adapters")[1]) == 2


def test_the_largest_scale_harms_its_own_request_alone(s):
    """A thousand times what was learned: noise, or no numbers at all."""
    want = {n: ids(s, n, "abcabc") for n in SORTS}
    wild = TEXT, {"prompt": "abcabc", "max_tokens": 4, "lora": [{"id": 0, "scale": 1000}]}
    for _ in range(3):
        got = together(lambda: s.post(*wild), *(lambda n=n: ids(s, n, "abcabc", cache_prompt=False) for n in SORTS))
        assert got[0][0] in (200, 400, 500) and got[1:] == [want[n] for n in SORTS]
    assert s.get("/health")[0] == 200


@pytest.mark.parametrize("scale", ["nan", "inf", "-inf", "1e999"])
def test_the_command_line_refuses_such_a_scale(files, scale):
    p = subprocess.run(
        [BUILD / "radish", "run", TINY, "abc", "--lora", f"pirate={files['pirate']}:{scale}", "--max-tokens", "1"],
        capture_output=True,
        text=True,
    )
    assert p.returncode == 1 and p.stdout == "" and '"pirate"' in p.stderr


def test_a_model_that_sees_answers_with_its_adapter(tmp_path):
    """The image's rows go through the adapter, too; what the base stored of the picture is not the adapter's."""
    shapes = {
        "self_attn.q_proj": (48, 48),
        "self_attn.k_proj": (24, 48),
        "self_attn.v_proj": (24, 48),
        "self_attn.o_proj": (48, 48),
        "mlp.gate_proj": (64, 48),
        "mlp.up_proj": (64, 48),
        "mlp.down_proj": (48, 64),
    }
    adapter = write_peft(tmp_path / "eye", 4, shapes=shapes)
    s = Server(
        *("--threads", "1", "--kv-tokens", "8192", "--lora", f"eye={adapter}", "--model-id", "base"),
        model=make_model(tmp_path, "qwen25vl"),
    )

    def logprobs(model, seed, **more):
        content = [
            {"type": "image_url", "image_url": {"url": url(picture(seed, width=64, height=64))}},
            {"type": "text", "text": "What?"},
        ]
        body = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 6, "temperature": 0}
        answer = s.ok(CHAT, body | {"ignore_eos": True, "logprobs": True} | more)
        return [t["logprob"] for t in answer["choices"][0]["logprobs"]["content"]]

    try:
        cases = [(m, i) for m in ("base", "eye") for i in (1, 2)]
        alone = {c: logprobs(*c, cache_prompt=False) for c in cases}
        assert len(set(map(tuple, alone.values()))) == 4
        for c in cases * 2:
            assert logprobs(*c) == alone[c], c
        assert together(*(lambda c=c: logprobs(*c) for c in cases * 2)) == [alone[c] for c in cases * 2]
        assert s.stats()["engine"]["accounting_errors"] == 0
    finally:
        assert s.stop() == 0
