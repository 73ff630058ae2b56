"""Several models behind one server (F99): a request names its model, and nobody's request is lost for another's."""

import contextlib
import json
import random
import re
import shutil
import signal
import subprocess
import threading
import time

import pytest

from radish_server import BUILD, ROOT, SANITIZED, TINY, Server

QWEN = ROOT / "tests/golden/qwen2/tiny-qwen2.gguf"
GEMMA = ROOT / "tests/golden/gemma3/tiny-gemma3.gguf"
NAMES = ["tiny-llama", "tiny-qwen2", "tiny-gemma3"]
ASK = {"prompt": [3, 4, 5, 6], "max_tokens": 12, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
LONG = {"model": "smollm2", "prompt": "Once upon a time", "max_tokens": 400, "temperature": 0, "ignore_eos": True}


@contextlib.contextmanager
def serving(tmp_path, *flags, model=TINY, ends=0, **kw):
    with open(tmp_path / "log", "ab") as log:
        s = Server(*map(str, flags), model=model, log=log, **kw)
        s.log = lambda: (tmp_path / "log").read_text()
        s.n_loads = lambda: s.log().count(" is loaded, in ")
        try:
            yield s
        finally:
            if s.process.poll() is None:
                s.process.terminate()
            assert s.process.wait(60) == ends


def states(s):
    return {m["id"]: m["status"]["value"] for m in s.get("/v1/models")[1]["data"]}


def answer(s, model, **more):
    body = s.ok("/v1/completions", ASK | {"model": model} | more)
    assert body["model"] == model
    return body["choices"][0]["text"], body["choices"][0].get("token_ids")


def wait_for(what, seconds=60):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What each model answers when it has a server of its own."""
    answers = {}
    for name, path in zip(NAMES, (TINY, QWEN, GEMMA)):
        with serving(tmp_path_factory.mktemp("alone"), model=path) as s:
            answers[name] = answer(s, name)
    return answers


def test_a_request_has_the_model_that_it_names(tmp_path, alone):
    with serving(tmp_path, QWEN, GEMMA) as s:
        assert states(s) == dict(zip(NAMES, ["loaded", "unloaded", "unloaded"]))
        for name in NAMES + NAMES[::-1]:
            assert answer(s, name) == alone[name]
            assert states(s)[name] == "loaded" and list(states(s).values()).count("loaded") == 1
        for name in NAMES[1:]:
            answer(s, name)
            assert s.ok("/v1/completions", ASK)["model"] == name  # none is named: the one that is there
        status, body = s.post("/v1/completions", ASK | {"model": "other"})
        assert status == 404 and all(name in body["error"]["message"] for name in NAMES)
        assert s.get("/v1/models/tiny-qwen2")[1]["status"]["value"] == "unloaded"
        assert s.get("/v1/models/tiny-qwen2")[1]["max_model_len"] > 0  # known since it was loaded
        assert s.get("/v1/models/other")[0] == 404
        assert s.stats()["engine"]["accounting_errors"] == 0


@pytest.mark.parametrize(
    "path,body",
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}),
        ("/v1/responses", {"input": "a", "max_output_tokens": 16}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}),
        ("/v1/embeddings", {"input": "a"}),
        ("/api/chat", {"messages": [{"role": "user", "content": "a"}], "stream": False}),
        ("/api/generate", {"prompt": "a", "stream": False}),
        ("/tokenize", {"prompt": "a"}),
    ],
)
def test_every_api_swaps(tmp_path, path, body):
    with serving(tmp_path, QWEN) as s:
        for name in ("tiny-qwen2", "tiny-llama"):
            answer = s.ok(path, body | {"model": name})
            assert answer.get("model", name) == name and states(s)[name] == "loaded"
        assert s.post(path, body | {"model": "other"})[0] == 404


def test_a_folder_of_models_and_names_that_clash(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    for path in (TINY, QWEN):
        shutil.copy(path, folder)
    with serving(tmp_path, model=folder) as s:
        assert states(s) == {"tiny-llama": "loaded", "tiny-qwen2": "unloaded"}
        answer(s, "tiny-qwen2")
    radish = [str(TINY), str(folder)], [str(TINY), str(QWEN), "--model-id", "x"], [str(tmp_path)]
    for words, wanted in zip(radish, ("two models are called tiny-llama", "one model", "without models")):
        program = subprocess.run([BUILD / "radish", "serve", *words], capture_output=True)
        assert program.returncode == 1 and wanted in program.stderr.decode()


def test_fifty_swaps_under_load_lose_no_request(tmp_path, alone):
    wrong, done, end = [], [0] * 6, threading.Event()

    def client(s, i):
        draw = random.Random(i)
        while not end.is_set():
            name = draw.choice(NAMES)
            try:
                if i % 2:
                    got = answer(s, name)
                else:
                    chunks = s.stream("/v1/completions", ASK | {"model": name})
                    got = "".join(c["choices"][0]["text"] for c in chunks if c["choices"]), alone[name][1]
                if got != alone[name]:
                    wrong.append((name, got))
            except Exception as e:  # a request that was lost
                wrong.append((name, repr(e)))
            done[i] += 1

    with serving(tmp_path, QWEN, GEMMA, "--io-threads", 3) as s:
        threads = [threading.Thread(target=client, args=(s, i)) for i in range(len(done))]
        for t in threads:
            t.start()
        wait_for(lambda: s.n_loads() >= 50 or wrong, 300)
        end.set()
        for t in threads:
            t.join()
        assert not wrong and min(done) > 5 and sum(done) >= 50
        assert s.stats()["engine"]["accounting_errors"] == 0
        print("%d requests, %d loads" % (sum(done), s.n_loads()))


def test_what_runs_ends_first_and_others_wait(tmp_path, alone):
    with serving(tmp_path, TINY, model="smollm2") as s:
        text = s.ok("/v1/completions", LONG)["choices"][0]["text"]
        with s.open_request("/v1/completions", LONG | {"stream": True}) as stream:
            first = stream.recv(65536)
            waiting = []
            t = threading.Thread(target=lambda: waiting.append(answer(s, "tiny-llama")))
            t.start()
            data = first
            while b"[DONE]" not in data:
                data += stream.recv(65536)
            t.join()
        pieces = re.findall(rb"data: (\{.*\})", data)
        assert "".join(c["text"] for p in pieces for c in json.loads(p)["choices"]) == text
        assert waiting == [alone["tiny-llama"]] and s.n_loads() == 1


def test_a_waiting_client_that_leaves_loads_nothing(tmp_path):
    with serving(tmp_path, TINY, model="smollm2") as s:
        with s.open_request("/v1/completions", LONG | {"stream": True}) as running:
            data = running.recv(65536)
            for _ in range(20):
                s.open_request("/v1/completions", ASK | {"model": "tiny-llama"}).close()
            while b"[DONE]" not in data:
                data += running.recv(65536)
        assert answer(s, "smollm2") and s.n_loads() == 0 and states(s)["tiny-llama"] == "unloaded"


def read_all(sock):
    """A response with a length."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += sock.recv(65536)
    n = int(re.search(rb"Content-Length: (\d+)", data)[1])
    while len(data.split(b"\r\n\r\n", 1)[1]) < n:
        data += sock.recv(65536)
    return data


def test_patience_has_an_end(tmp_path):
    with serving(tmp_path, TINY, "--swap-wait", 1, "--ctx", 4096, model="smollm2") as s:
        with s.open_request("/v1/completions", LONG | {"max_tokens": 3000, "stream": True}) as running:
            running.recv(1)
            status, headers, body = s.request("POST", "/v1/completions", ASK | {"model": "tiny-llama"})
            assert status == 503 and b"not loaded yet" in body and "retry-after" in headers
        assert answer(s, "tiny-llama")  # the long one's client has left


def broken_models(folder):
    """A file that is none, one that is cut, and one whose fault shows only when it is loaded."""
    data = QWEN.read_bytes()
    (folder / "none.gguf").write_bytes(b"no model")
    (folder / "cut.gguf").write_bytes(data[: len(data) // 2])
    (folder / "odd.gguf").write_bytes(data.replace(b"qwen2", b"qwen9"))
    return [folder / name for name in ("none.gguf", "cut.gguf", "odd.gguf")]


def test_a_model_that_cannot_be_loaded_leaves_the_old_one(tmp_path, alone):
    with serving(tmp_path, *broken_models(tmp_path)) as s:
        for name in ("none", "cut", "odd"):
            status, body = s.post("/v1/completions", ASK | {"model": name})
            assert status == 503 and name in body["error"]["message"] and "cannot be loaded" in body["error"]["message"]
            assert states(s)[name] == "failed"
            wait_for(lambda: states(s)["tiny-llama"] == "loaded")  # by itself
            assert answer(s, "tiny-llama") == alone["tiny-llama"] and states(s)["tiny-llama"] == "loaded"
        assert s.n_loads() <= 1  # the file of the first two was looked at before anything was closed
        ask = {"model": "none", "max_tokens": 4, "messages": [{"role": "user", "content": "a"}]}
        status, body = s.post("/v1/messages", ask)  # broken, not overloaded
        assert status == 500 and body["error"]["type"] == "api_error", body
        shutil.copy(QWEN, tmp_path / "none.gguf")  # mended
        assert s.ok("/v1/completions", ASK | {"model": "none"})["choices"][0]["text"] == alone["tiny-qwen2"][0]


def test_names_behind_long_bodies_and_in_escapes(tmp_path):
    with serving(tmp_path, QWEN, GEMMA) as s:
        long = {"input": ["a"] * 30000, "model": "tiny-gemma3"}  # for a worker, the name at its end
        status, body = s.post("/v1/embeddings", long)
        assert status in (200, 400), body
        assert states(s)["tiny-gemma3"] == "loaded"
        body = json.dumps(ASK | {"model": "tiny-qwen2"}).replace("tiny-qwen2", "tiny\\u002dqwen2").encode()
        assert s.request("POST", "/v1/completions", body)[0] == 200
        assert s.request("POST", "/v1/completions", b'{"model": "tiny-llama", "prompt": ')[0] == 400
        assert (
            s.post("/v1/completions", {"prompt": [3], "max_tokens": 1, "metadata": {"model": "tiny-gemma3"}})[0] == 200
        )
        assert states(s)["tiny-llama"] == "loaded"


def anonymous(s):
    with open("/proc/%d/status" % s.process.pid) as f:
        return int(re.search(r"RssAnon:\s+(\d+)", f.read())[1])


def test_an_idle_model_gives_its_memory_back(tmp_path, alone):
    with serving(tmp_path, TINY, "--idle-unload", 1, model="smollm2") as s:
        held = []
        for name in ("smollm2", "tiny-llama", "smollm2", "tiny-llama", "smollm2"):
            answer(s, name)
            loaded = anonymous(s)
            wait_for(lambda: "loaded" not in states(s).values())
            held.append((name, loaded, anonymous(s)))
        rested = [n for _, _, n in held]
        assert SANITIZED or max(rested) - min(rested) <= 4096 and max(rested) < held[0][1] / 2, (
            held
        )  # KiB; what the C library keeps
        status, body = s.get("/stats")
        assert status == 503 and "No model is loaded" in body["error"]["message"]
        assert s.get("/health")[0] == 200 and "loaded" not in states(s).values()  # a look loads nothing
        assert answer(s, "tiny-llama") == alone["tiny-llama"]


def test_one_model_that_rests(tmp_path, alone):
    with serving(tmp_path, "--idle-unload", 1) as s:
        assert answer(s, "tiny-llama") == alone["tiny-llama"]
        wait_for(lambda: states(s) == {"tiny-llama": "unloaded"})
        assert s.post("/v1/completions", ASK | {"model": "other"})[0] == 404
        assert states(s) == {"tiny-llama": "unloaded"}
        assert s.ok("/v1/completions", ASK)["choices"][0]["text"] == alone["tiny-llama"][0]


def test_a_conversation_finds_its_prefix_when_its_model_comes_back(tmp_path):
    ask = {"model": "smollm2", "prompt": "A tale of many words: " * 20, "max_tokens": 4, "temperature": 0}
    with serving(tmp_path, TINY, "--cache-dir", tmp_path / "kv", model="smollm2") as s:
        first = s.ok("/v1/completions", ask)
        answer(s, "tiny-llama")
        again = s.ok("/v1/completions", ask)
        assert again["choices"][0]["text"] == first["choices"][0]["text"]
        cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached >= again["usage"]["prompt_tokens"] - 32, again["usage"]


def test_the_end_comes_while_some_wait(tmp_path):
    with serving(tmp_path, TINY, model="smollm2") as s:
        with s.open_request("/v1/completions", LONG) as running:
            time.sleep(0.2)
            with s.open_request("/v1/completions", ASK | {"model": "tiny-llama"}) as waiting:
                time.sleep(0.2)
                s.process.send_signal(signal.SIGTERM)
                assert b'"finish_reason":"length"' in read_all(running)
                assert b"200 OK" in read_all(waiting)  # within the drain
        assert s.process.wait(60) == 0
    with serving(tmp_path, TINY, "--drain", 1, "--ctx", 4096, model="smollm2") as s:
        with s.open_request("/v1/completions", LONG | {"max_tokens": 3500}) as running:
            time.sleep(0.2)
            with s.open_request("/v1/completions", ASK | {"model": "tiny-llama"}) as waiting:
                time.sleep(0.2)
                s.process.send_signal(signal.SIGTERM)
                assert b" 503 " in waiting.recv(65536)
                assert running.recv(65536)
        assert s.process.wait(60) == 0


def test_a_monitor_page_that_is_left_open_stops_no_swap(tmp_path, alone):
    with serving(tmp_path, QWEN) as s:
        page = s.connect()
        page.request("GET", "/v1/monitor/events")
        events = page.getresponse()
        for name in NAMES[:2] * 3:
            assert answer(s, name) == alone[name]
        rows = []
        while len(rows) < 3:  # of another engine now: nothing is negative
            line = events.readline()
            if line.startswith(b"data: "):
                rows.append(json.loads(line[6:])["row"])
        assert all(v is None or v >= 0 for row in rows for v in row[1:])
        status, body = s.get("/v1/monitor")
        assert status == 200 and body["model"]["id"] == "tiny-qwen2"
        page.close()


def test_clients_that_come_and_go_while_models_swap(tmp_path, alone):
    """Hang-ups in every phase, on connections that are kept, with two io threads."""
    draw = random.Random(7)
    with serving(tmp_path, QWEN, "--io-threads", 2) as s:
        for _ in range(150):
            name = draw.choice(NAMES[:2])
            sock = s.open_request("/v1/completions", ASK | {"model": name, "max_tokens": draw.choice([1, 100])})
            if draw.random() < 0.3:
                sock.settimeout(30)
                assert b"200 OK" in sock.recv(65536)
            sock.close()
        for name in NAMES[:2]:
            assert answer(s, name) == alone[name]
        assert s.stats()["engine"]["accounting_errors"] == 0
