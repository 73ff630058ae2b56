"""Adapters (LoRA) behind one model: chosen by name or by llama-server's list, loaded and unloaded while the server runs."""

import json
import os
import random
import subprocess
import threading

import openai
import pytest
from lora_files import write_peft
from radish_server import BUILD, TINY, Server

ASK = {
    "prompt": [3, 4, 5, 6] * 10,
    "max_tokens": 16,
    "temperature": 0,
    "ignore_eos": True,
    "return_token_ids": True,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lora")
    return {name: write_peft(folder / name, seed) for seed, name in enumerate(("pirate", "poet", "clerk"))}


@pytest.fixture(scope="module")
def s(files):
    s = Server(
        "--threads",
        "1",
        "--kv-tokens",
        "8192",
        "--lora",
        f"pirate={files['pirate']}",
        "--lora",
        f"{files['poet']}:0.5",
        "--lora-dir",
        str(files["clerk"].parent),
        model=TINY,
    )
    yield s
    assert s.stats()["engine"]["accounting_errors"] == 0
    assert s.stop() == 0


def ids(s, model="tiny-llama", **more):
    body = s.ok("/v1/completions", ASK | {"model": model} | more)
    assert body["model"] == model
    return body["choices"][0]["token_ids"]


def cached(body):
    return body["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_models_are_listed_with_their_parent(s):
    data = {m["id"]: m for m in s.get("/v1/models")[1]["data"]}
    assert list(data) == ["tiny-llama", "pirate", "poet"]
    assert data["tiny-llama"]["parent"] is None and data["pirate"]["parent"] == data["poet"]["parent"] == "tiny-llama"
    assert data["pirate"]["root"] == "pirate"
    assert s.get("/v1/models/poet")[1]["id"] == "poet"
    assert s.get("/v1/models/parrot")[0] == 404


def test_a_request_names_its_adapter(s):
    base, pirate, poet = ids(s), ids(s, "pirate"), ids(s, "poet")
    assert len({tuple(base), tuple(pirate), tuple(poet)}) == 3
    assert ids(s, "tiny-llama:pirate") == pirate
    status, answer = s.post("/v1/completions", ASK | {"model": "parrot"})
    assert status == 404 and answer["error"]["code"] == "model_not_found"
    assert ids(s) == base


def test_where_the_model_alone_computes_an_adapter_is_told_so(s):
    """It is in the list of models: that it does not exist would be no help."""
    for path, body in (
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/classify", {"input": "a", "labels": ["a", "b"]}),
    ):
        for name in ("pirate", "tiny-llama:pirate"):
            status, answer = s.post(path, body | {"model": name})
            assert status == 400 and "for answers that are generated" in answer["error"]["message"], answer
            assert answer["error"]["param"] == "model" and answer["error"]["code"] is None
        status, answer = s.post(path, body | {"model": "parrot"})
        assert status == 404 and answer["error"]["code"] == "model_not_found"


def test_a_list_of_scales_as_llama_server_has_it(s):
    known = {a["name"]: a["id"] for a in s.get("/lora-adapters")[1]}
    assert known == {"pirate": 0, "poet": 1}
    assert ids(s, lora=[{"id": 0, "scale": 1}]) == ids(s, "pirate")
    assert ids(s, lora=[{"id": 1, "scale": 0.5}]) == ids(s, "poet")
    assert ids(s, lora=[{"id": 1, "scale": 0}]) == ids(s, lora=[]) == ids(s)
    both = ids(s, lora=[{"id": 0, "scale": 1}, {"id": 1, "scale": 0.5}])
    assert both == ids(s, "pirate", lora=[{"id": 1, "scale": 0.5}])
    assert both not in (ids(s), ids(s, "pirate"), ids(s, "poet"))
    for lora in (
        [{"id": 9}],
        [{"id": "pirate"}],
        [{}],
        [{"id": 0, "scale": "1"}],
        [{"id": 0}, {"id": 0}],
        [{"id": -1}],
        "x",
    ):
        assert s.post("/v1/completions", ASK | {"lora": lora})[0] == 400, lora
    assert s.post("/v1/completions", ASK | {"model": "pirate", "lora": [{"id": 0}]})[0] == 400


def test_what_is_stored_belongs_to_an_adapter(s):
    ask = ASK | {"prompt": [7, 8, 9, 10] * 12}
    for model in ("tiny-llama", "pirate", "poet"):
        assert cached(s.ok("/v1/completions", ask | {"model": model})) == 0
    for model in ("tiny-llama", "pirate", "tiny-llama:poet"):
        assert cached(s.ok("/v1/completions", ask | {"model": model})) == 48
        why = s.ok("/v1/cache/explain", ask | {"model": model})
        assert why["stored_tokens"] == 48
    assert s.ok("/v1/cache/explain", ask | {"lora": [{"id": 0, "scale": 0.7}]})["stored_tokens"] == 0


def test_applied_to_requests_that_say_nothing(s):
    base, pirate = ids(s), ids(s, "pirate")
    assert s.ok("/lora-adapters", [{"id": 0, "scale": 1.0}]) == {"success": True}
    assert s.get("/lora-adapters")[1][0]["scale"] == 1
    assert ids(s) == pirate and ids(s, lora=[]) == base
    assert s.ok("/lora-adapters", []) == {"success": True}
    assert ids(s) == base
    for body in ({}, [{"id": 5, "scale": 1}], [{"id": 0}], [{"id": 0, "scale": "x"}], [3]):
        assert s.post("/lora-adapters", body)[0] == 400, body


def test_loaded_and_unloaded_by_request_with_vllms_fields(s, files, tmp_path):
    assert s.ok("/v1/load_lora_adapter", {"lora_name": "clerk", "lora_path": "clerk"})["success"]
    clerk = ids(s, "clerk")
    status, answer = s.post("/v1/load_lora_adapter", {"lora_name": "clerk", "lora_path": str(files["clerk"])})
    assert status == 400 and "already" in answer["error"]["message"]
    assert s.ok("/v1/unload_lora_adapter", {"lora_name": "clerk"})["success"]
    assert s.post("/v1/completions", ASK | {"model": "clerk"})[0] == 404
    assert s.post("/v1/unload_lora_adapter", {"lora_name": "clerk"})[0] == 404
    assert s.ok("/v1/load_lora_adapter", {"lora_name": "writer", "lora_path": str(files["clerk"])})["success"]
    body = s.ok("/v1/completions", ASK | {"model": "writer"})
    assert body["choices"][0]["token_ids"] == clerk and cached(body) == 40  # found under another name
    assert s.ok("/v1/unload_lora_adapter", {"lora_name": "writer"})["success"]

    outside = write_peft(tmp_path / "outside", 9)
    (files["clerk"].parent / "link").symlink_to(outside)
    for path in (str(outside), "../" + outside.name, "link", "/etc", "nothing", "clerk/../../.."):
        status, answer = s.post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": path})
        assert status == 404 and str(tmp_path) not in json.dumps(answer), path
    for body in (
        {},
        {"lora_name": "x"},
        {"lora_name": 3, "lora_path": "clerk"},
        [],
        {"lora_name": "x", "lora_path": ""},
    ):
        assert s.post("/v1/load_lora_adapter", body)[0] == 400, body
    assert s.post("/v1/load_lora_adapter", {"lora_name": "tiny-llama", "lora_path": "clerk"})[0] == 400
    broken = write_peft(files["clerk"].parent / "broken", 3, use_dora=True)
    status, answer = s.post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": broken.name})
    assert status == 400 and "use_dora" in answer["error"]["message"]


def test_without_a_folder_nothing_is_loaded_by_request(server, files):
    status, answer = server.post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": str(files["clerk"])})
    assert status == 403 and "--lora-dir" in answer["error"]["message"]


def test_tenants_use_adapters_and_change_none(make_server, files, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alice-key\nbob-key\n")
    s = make_server(
        *("--api-key", "own-key", "--api-key-file", str(keys), "--threads", "1", "--kv-tokens", "2048"),
        *("--lora", f"pirate={files['pirate']}", "--lora-dir", str(files["pirate"].parent)),
        model=TINY,
    )
    alice, bob, own = ({"Authorization": f"Bearer {k}-key"} for k in ("alice", "bob", "own"))
    ask = ASK | {"model": "pirate"}
    assert s.post("/v1/completions", ask)[0] == 401
    for who in (alice, bob):
        status, body = s.post("/v1/completions", ask, who)
        assert status == 200 and cached(body) == 0  # nothing of the other's
    assert s.get("/lora-adapters", alice)[1][0]["path"] == "pirate"
    assert s.get("/lora-adapters", own)[1][0]["path"] == str(files["pirate"])
    for path, body in (
        ("/lora-adapters", [{"id": 0, "scale": 1}]),
        ("/v1/load_lora_adapter", {"lora_name": "poet", "lora_path": "poet"}),
        ("/v1/unload_lora_adapter", {"lora_name": "pirate"}),
    ):
        assert s.post(path, body, alice)[0] == 403, path
    assert s.post("/v1/load_lora_adapter", {"lora_name": "poet", "lora_path": "poet"}, own)[0] == 200


def test_chats_streams_and_clients(s):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="none")
    assert [m.id for m in client.models.list()][:3] == ["tiny-llama", "pirate", "poet"]
    messages = [{"role": "user", "content": "abc"}]
    texts = {}
    for model in ("tiny-llama", "pirate", "poet"):
        ask = {
            "model": model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": 12,
            "extra_body": {"ignore_eos": True},
        }
        whole = client.chat.completions.create(**ask)
        parts = list(client.chat.completions.create(**ask, stream=True))
        assert whole.model == model and {p.model for p in parts} == {model}
        texts[model] = whole.choices[0].message.content
        assert texts[model] == "".join(p.choices[0].delta.content or "" for p in parts if p.choices)
        answer = client.responses.create(model=model, input="abc", temperature=0, max_output_tokens=12)
        assert answer.model == model
        status, answer = s.post("/v1/messages", {"model": model, "max_tokens": 4, "messages": messages})
        assert status == 200 and answer["model"] == model
    assert len(set(texts.values())) == 3


def test_many_at_once_are_what_each_is_alone_while_others_come_and_go(s):
    """Mixed in one batch, with one that is loaded and unloaded all the time."""
    names = ["tiny-llama", "pirate", "poet", "clerk"]
    s.ok("/v1/load_lora_adapter", {"lora_name": "clerk", "lora_path": "clerk"})
    alone = {n: ids(s, n) for n in names}
    s.ok("/v1/unload_lora_adapter", {"lora_name": "clerk"})
    wrong, seen, stop = [], {n: 0 for n in names}, threading.Event()

    def ask(seed):
        draw = random.Random(seed)
        for _ in range(25):
            n = draw.choice(names)
            status, body = s.post("/v1/completions", ASK | {"model": n, "cache_prompt": draw.random() < 0.5})
            if status == 404 and n == "clerk":
                continue
            if status != 200 or body["choices"][0]["token_ids"] != alone[n]:
                wrong.append((n, status, body))
            seen[n] += 1

    def swap():
        while not stop.is_set():
            s.ok("/v1/load_lora_adapter", {"lora_name": "clerk", "lora_path": "clerk"})
            s.ok("/v1/unload_lora_adapter", {"lora_name": "clerk"})

    swapper = threading.Thread(target=swap)
    swapper.start()
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    stop.set()
    swapper.join()
    assert not wrong and min(seen[n] for n in names[:3]) > 10


def test_a_thousand_swaps_under_load_lose_no_request_and_keep_no_memory(make_server, files):
    """Loaded, named, and unloaded while others run, with room for two of the three or four there are."""
    s = make_server(
        *("--threads", "1", "--kv-tokens", "4096", "--lora", f"pirate={files['pirate']}", "--no-disk-cache"),
        *("--lora", f"poet={files['poet']}", "--lora-dir", str(files["clerk"].parent)),
        model=TINY,
    )
    names = ["tiny-llama", "pirate", "poet"]
    want = {n: ids(s, n) for n in names}
    s.ok("/v1/load_lora_adapter", {"lora_name": "clerk", "lora_path": "clerk"})
    want["clerk"] = ids(s, "clerk")
    n_bytes = s.get("/lora-adapters")[1][0]["bytes"]
    assert s.stop() == 0
    s = make_server(
        *("--threads", "1", "--kv-tokens", "4096", "--lora", f"pirate={files['pirate']}", "--no-disk-cache"),
        *("--lora", f"poet={files['poet']}", "--lora-dir", str(files["clerk"].parent)),
        *("--lora-bytes", str(5 * n_bytes // 2)),
        model=TINY,
    )
    wrong, n_asked, stop = [], [0] * 2, threading.Event()

    def ask(seed):
        draw = random.Random(seed)
        while not stop.is_set():
            n = draw.choice(names)
            status, body = s.post("/v1/completions", ASK | {"model": n, "cache_prompt": draw.random() < 0.5})
            if status == 429:  # two others are in use
                continue
            if status != 200 or body["choices"][0]["token_ids"] != want[n]:
                wrong.append((n, status, body))
            n_asked[seed] += 1

    def anon():
        return next(int(x.split()[1]) for x in open(f"/proc/{s.process.pid}/status") if x.startswith("RssAnon"))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()

    def until_there_is_room(path, body, refusal):
        """Both places are often taken by the other two: whoever waits for one must get it, sooner or later."""
        answers = []
        s.wait_until(lambda: answers.append(s.post(path, body)) or answers[-1][0] != refusal, seconds=300)
        assert answers[-1][0] == 200
        return answers[-1][1]

    n_swaps, early = 1000 if os.environ.get("RADISH_LONG") == "1" else 30, 0
    for i in range(n_swaps):
        until_there_is_room("/v1/load_lora_adapter", {"lora_name": f"clerk{i}", "lora_path": "clerk"}, 409)
        body = until_there_is_room("/v1/completions", ASK | {"model": f"clerk{i}"}, 429)
        assert body["choices"][0]["token_ids"] == want["clerk"]
        s.ok("/v1/unload_lora_adapter", {"lora_name": f"clerk{i}"})
        if i == n_swaps // 3:
            early = anon()
    s.wait_until(lambda: min(n_asked) > 5)  # on a slow machine, or backend, swaps alone do not take as long
    stop.set()
    for t in threads:
        t.join()
    assert not wrong and min(n_asked) > 5
    assert anon() < early + 8192  # KiB
    assert sum(a["in_memory"] for a in s.get("/lora-adapters")[1]) <= 2
    assert {n: ids(s, n) for n in names} == {n: want[n] for n in names}
    assert s.stats()["engine"]["accounting_errors"] == 0


def test_the_models_own_name_is_no_adapters(files):
    words = [BUILD / "radish", "serve", TINY, "--port", "0", "--lora", f"tiny-llama={files['pirate']}"]
    r = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert r.returncode != 0 and "the model itself" in r.stderr


def test_run_computes_with_it(files):
    words = [BUILD / "radish", "run", TINY, "--threads", "1", "--raw", "--temperature", "0", "--max-tokens", "12"]
    out = [
        subprocess.run([*words, *more, "abcabc"], capture_output=True, text=True)
        for more in ([], ["--lora", f"{files['pirate']}"], ["--lora", f"x={files['pirate']}:0"])
    ]
    assert [r.returncode for r in out] == [0, 0, 0]
    assert out[0].stdout == out[2].stdout != out[1].stdout
    r = subprocess.run([*words, "--lora", "x=/nowhere", "abc"], capture_output=True, text=True)
    assert r.returncode == 1 and 'adapter "x": there is no /nowhere' in r.stderr
    for scale in ("nan", "inf", "1e999", "1e9", "-1001"):
        r = subprocess.run([*words, "--lora", f"x={files['pirate']}:{scale}", "abc"], capture_output=True, text=True)
        assert r.returncode == 1 and 'adapter "x": its scale is ' in r.stderr and "within -1000 and 1000" in r.stderr, r


def test_idle_unload_brings_them_back(make_server, files):
    s = make_server(
        *("--threads", "1", "--kv-tokens", "1024", "--idle-unload", "1", "--lora", f"pirate={files['pirate']}"),
        model=TINY,
    )
    first = ids(s, "pirate")
    threading.Event().wait(2.5)
    assert ids(s, "pirate") == first != ids(s)
    assert s.post("/v1/completions", ASK | {"model": "parrot"})[0] == 404
