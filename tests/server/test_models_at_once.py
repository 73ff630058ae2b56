"""Several models loaded at once, and who waits for whom when there is room for fewer (F99): docs/api.md states the rules."""

import contextlib
import json
import random
import re
import shutil
import threading
import time

import pytest
from radish_server import JSON, SANITIZED, TINY
from test_several_models import ASK, GEMMA, LONG, NAMES, QWEN, anonymous, answer, serving, states, wait_for


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    answers = {}
    for name, path in zip(NAMES, (TINY, QWEN, GEMMA)):
        with serving(tmp_path_factory.mktemp("alone"), model=path) as s:
            answers[name] = answer(s, name)
    return answers


def loaded(s):
    return [name for name, state in states(s).items() if state == "loaded"]


def stays_are_over(s, *names):
    """Each has been there for four times what its load took: from here on the one used longest ago goes first."""
    end = time.monotonic() + 4 * max(float(x) for x in re.findall(r" is loaded, in ([0-9.]+) s", s.log())) + 1
    while time.monotonic() < end:
        for name in names:
            answer(s, name)


def test_two_are_there_at_once_and_a_third_takes_the_older_ones_place(tmp_path, alone):
    with serving(tmp_path, QWEN, GEMMA, "--max-models", 2) as s:
        for _ in range(10):
            for name in NAMES[:2]:
                assert answer(s, name) == alone[name]
        assert s.n_loads() == 1 and loaded(s) == NAMES[:2]
        stays_are_over(s, *NAMES[1::-1])
        n = s.get(f"/stats?model={NAMES[0]}")[1]["requests"]["length"]
        assert answer(s, NAMES[2]) == alone[NAMES[2]]
        assert loaded(s) == [NAMES[0], NAMES[2]]  # the one used longest ago has gone
        # each has numbers of its own; without a name the one used last tells
        page = {name: s.get(f"/stats?model={name}")[1]["requests"]["length"] for name in loaded(s)}
        assert page == {NAMES[0]: n, NAMES[2]: 1} and s.stats()["requests"]["length"] == 1
        assert s.get("/v1/monitor?model=tiny%2Dllama")[1]["model"]["id"] == "tiny-llama"
        status, body = s.get(f"/stats?model={NAMES[1]}")
        assert status == 503 and "not loaded" in body["error"]["message"] and s.n_loads() == 2
        assert s.get("/stats?model=other")[0] == 404


def test_both_answer_at_the_same_time(tmp_path, alone):
    with serving(tmp_path, TINY, "--max-models", 2, model="smollm2") as s:
        answer(s, "tiny-llama")
        with s.open_request("/v1/completions", LONG | {"stream": True, "max_tokens": 1500}) as stream:
            data = stream.recv(65536)
            assert answer(s, "tiny-llama") == alone["tiny-llama"]
            while b"[DONE]" not in data:
                data += stream.recv(65536)
        assert s.n_loads() == 1


def test_memory_says_how_many(tmp_path, alone):
    """--models-memory allows one alone, whatever --max-models says; no request fails for that."""
    with serving(tmp_path, QWEN, "--max-models", 3, "--models-memory", "1M", "--kv-tokens", 512) as s:
        for name in NAMES[:2] * 3:
            assert answer(s, name) == alone[name] and loaded(s) == [name]
    with serving(tmp_path, QWEN, GEMMA, "--max-models", 3, "--models-memory", "1G", "--kv-tokens", 512) as s:
        for name in NAMES * 2:
            assert answer(s, name) == alone[name]
        assert loaded(s) == NAMES


@pytest.mark.parametrize("at_once", [1, 2])
def test_two_clients_by_turns_do_not_load_for_every_request(tmp_path, alone, at_once):
    """Each asks again as soon as it was answered, for a model of its own: a model stays for several requests."""
    done, wrong, end = [0, 0, 0], [], threading.Event()

    def client(s, i):
        while not end.is_set():
            if answer(s, NAMES[i]) != alone[NAMES[i]]:
                wrong.append(i)
            done[i] += 1

    with serving(tmp_path, QWEN, GEMMA, "--max-models", at_once, "--io-threads", 2) as s:
        threads = [threading.Thread(target=client, args=(s, i)) for i in range(at_once + 1)]
        for t in threads:
            t.start()
        wait_for(lambda: s.n_loads() >= 12, 300)
        end.set()
        for t in threads:
            t.join()
        n_loads = s.n_loads()
    assert not wrong and sum(done) > 3 * n_loads, (done, n_loads)
    assert min(done[: at_once + 1]) >= 3, done  # and none of them starves


def test_a_tenant_that_asks_for_all_models_leaves_the_others_their_turn(tmp_path, alone):
    keys = tmp_path / "keys"
    keys.write_text("alice-key\nbob-key\n")
    models = []
    for i in range(6):
        models.append(tmp_path / f"model-{i}.gguf")
        shutil.copy(QWEN, models[-1])
    turns, end = [], threading.Event()

    def ask(s, name, who):
        body = json.dumps(ASK | {"model": name}).encode()
        status, _, raw = s.request("POST", "/v1/completions", body, {"Authorization": f"Bearer {who}-key"})
        assert status == 200, raw
        turns.append(who)

    def greedy(s, i):
        draw = random.Random(i)
        while not end.is_set():
            ask(s, f"model-{draw.randrange(6)}", "alice")

    with serving(tmp_path, *models[1:], TINY, "--api-key-file", keys, model=models[0]) as s:
        threads = [threading.Thread(target=greedy, args=(s, i)) for i in range(6)]
        for t in threads:
            t.start()
        before = s.n_loads()
        for _ in range(6):  # bob's model is loaded when alice's last one has had its stay, however many she waits for
            ask(s, "tiny-llama", "bob")
        loads = re.findall(r"(\S+) is loaded, in ", s.log())[before:]
        end.set()
        for t in threads:
            t.join()
    assert turns.count("bob") == 6 and turns.count("alice") >= 6
    of_bob = loads.count("tiny-llama")
    assert len(loads) <= 3 * of_bob + 3, loads  # one of hers between two of his, and what was on its way


def test_a_stream_is_told_that_its_model_is_on_its_way(tmp_path, alone):
    with serving(tmp_path, TINY, *broken(tmp_path), model="smollm2") as s:
        with s.open_request("/v1/completions", LONG | {"max_tokens": 1500, "stream": True}) as running:
            running.recv(65536)
            waiting = [
                s.open_request("/v1/completions", ASK | {"model": name, "stream": True})
                for name in ("tiny-llama", "odd")
            ] + [s.open_request("/v1/completions", ASK | {"model": "tiny-llama", "stream": True, "temperature": -1})]
            first = [w.recv(65536) for w in waiting]
            assert all(b"200 OK" in f and b"text/event-stream" in f for f in first)
            for i, w in enumerate(waiting):
                while b": waiting for the model" not in first[i]:
                    first[i] += w.recv(65536)
        whole = []
        for f, w in zip(first, waiting):
            w.settimeout(120)
            while not f.endswith(b"0\r\n\r\n"):
                f += w.recv(65536)
            whole.append(f)
            w.close()
        text = "".join(c["text"] for p in re.findall(rb"data: (\{.*\})", whole[0]) for c in json.loads(p)["choices"])
        assert text == alone["tiny-llama"][0] and whole[0].count(b"HTTP/1.1 ") == 1 and b"data: [DONE]" in whole[0]
        for data, message in ((whole[1], "cannot be loaded"), (whole[2], "temperature")):
            assert b"event: error\ndata: " in data and data.count(b"HTTP/1.1 ") == 1
            assert message in json.loads(re.search(rb"data: (\{.*\})", data)[1])["error"]["message"]
        assert answer(s, "tiny-llama") == alone["tiny-llama"]


def test_clients_libraries_take_a_stream_that_waited(tmp_path):
    import anthropic
    import openai

    with serving(tmp_path, TINY, *broken(tmp_path), model="smollm2") as s:

        def after_a_wait(ask):
            with s.open_request("/v1/completions", LONG | {"max_tokens": 1500, "stream": True}) as running:
                running.recv(1)
                t = threading.Timer(2.5, running.close)
                t.start()
                try:
                    return ask()
                finally:
                    t.join()

        client = openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="none", max_retries=0)
        claude = anthropic.Anthropic(base_url=f"http://127.0.0.1:{s.port}", api_key="none", max_retries=0)
        hi = [{"role": "user", "content": "a"}]

        def chat(model):
            return list(client.chat.completions.create(model=model, messages=hi, max_tokens=3, stream=True))

        def message(model):
            return list(claude.messages.create(model=model, messages=hi, max_tokens=3, stream=True))

        assert after_a_wait(lambda: chat("tiny-llama"))[-1].choices[0].finish_reason
        s.ok("/v1/completions", ASK | {"model": "smollm2"})
        assert after_a_wait(lambda: message("tiny-llama"))[-1].type == "message_stop"
        s.ok("/v1/completions", ASK | {"model": "smollm2"})
        with pytest.raises(openai.APIError, match="cannot be loaded"):
            after_a_wait(lambda: chat("odd"))
        s.ok("/v1/completions", ASK | {"model": "smollm2"})
        with pytest.raises(anthropic.APIError):
            after_a_wait(lambda: message("odd"))


def broken(folder):
    """One whose fault shows only when it is loaded."""
    (folder / "odd.gguf").write_bytes(QWEN.read_bytes().replace(b"qwen2", b"qwen9"))
    return [folder / "odd.gguf"]


def test_a_load_that_nobody_waits_for_is_given_up(tmp_path, alone):
    with serving(tmp_path, "smollm2", "--no-packed-cache") as s:
        for _ in range(20):
            with s.open_request("/v1/completions", ASK | {"model": "smollm2"}):
                wait_for(lambda: states(s)["smollm2"] != "unloaded")
            wait_for(lambda: states(s)["smollm2"] != "loading")
            if "smollm2 is not loaded: nobody waits" in s.log():
                break
            assert answer(s, "tiny-llama") == alone["tiny-llama"]
        assert "smollm2 is not loaded: nobody waits" in s.log()
        assert answer(s, "tiny-llama") == alone["tiny-llama"] and s.ok("/v1/completions", ASK | {"model": "smollm2"})
        assert s.stats()["engine"]["accounting_errors"] == 0


def test_a_file_that_goes_or_is_damaged_while_it_is_in_use(tmp_path, alone):
    mine = tmp_path / "mine.gguf"
    shutil.copy(QWEN, mine)
    with serving(tmp_path, mine, GEMMA, "--max-models", 2) as s:
        assert answer(s, "mine") == alone["tiny-qwen2"]
        mine.unlink()  # what is loaded goes on
        assert answer(s, "mine") == alone["tiny-qwen2"]
        stays_are_over(s, "mine", "tiny-llama")
        answer(s, "tiny-gemma3")
        assert "mine" not in loaded(s)
        status, body = s.post("/v1/completions", ASK | {"model": "mine"})
        assert status == 503 and "cannot be loaded" in body["error"]["message"]
        assert loaded(s) == ["tiny-llama", "tiny-gemma3"]  # nothing was closed for it
        shutil.copy(QWEN, mine)
        assert answer(s, "mine") == alone["tiny-qwen2"]
        with mine.open("r+b") as f:  # cut in place, under a model that is loaded
            f.truncate(4096)
        for _ in range(5):  # either its bytes are the process's own by now, or its requests fail; no other does
            status, body = s.post("/v1/completions", ASK | {"model": "mine"})
            assert status >= 500 or body["choices"][0]["text"] == alone["tiny-qwen2"][0]
            for name in ("tiny-llama", "tiny-gemma3"):
                assert answer(s, name) == alone[name]
        shutil.copy(QWEN, tmp_path / "new")
        (tmp_path / "new").rename(mine)
        wait_for(lambda: s.post("/v1/completions", ASK | {"model": "mine"})[0] == 200)
        assert answer(s, "mine") == alone["tiny-qwen2"]


def test_a_mapped_file_that_is_cut_closes_its_model_alone(tmp_path, alone):
    from radish_server import model_path

    mine = tmp_path / "mine.gguf"
    shutil.copy(model_path("smollm2"), mine)
    ask = {"model": "mine", "prompt": "A tale of", "max_tokens": 4, "temperature": 0}
    with serving(tmp_path, mine, "--max-models", 2, "--no-packed-cache") as s:
        text = s.ok("/v1/completions", ask)["choices"][0]["text"]
        with mine.open("r+b") as f:
            f.truncate(4096)
        seen = []
        for i in range(40):
            status, body = s.post("/v1/completions", ask | {"prompt": f"{i} tales of a house"})
            seen.append(status)
            assert answer(s, "tiny-llama") == alone["tiny-llama"]
            if status == 503 and "cannot be loaded" in body["error"]["message"]:
                break
            time.sleep(0.1)
        assert seen[-1] == 503 and "its file failed" in s.log(), seen
        mine.unlink()
        shutil.copy(model_path("smollm2"), mine)
        assert s.ok("/v1/completions", ask)["choices"][0]["text"] == text


def test_idle_models_go_one_by_one(tmp_path, alone):
    with serving(tmp_path, QWEN, "--max-models", 2, "--idle-unload", 1) as s:
        answer(s, "tiny-qwen2")
        end = time.monotonic() + 120
        while "tiny-qwen2" in loaded(s):
            assert answer(s, "tiny-llama") == alone["tiny-llama"] and time.monotonic() < end
        assert loaded(s) == ["tiny-llama"]
        wait_for(lambda: not loaded(s))
        assert answer(s, "tiny-qwen2") == alone["tiny-qwen2"]


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_client_that_asks_for_all_and_hangs_up(tmp_path, alone, at_once):
    draw = random.Random(at_once)
    with serving(tmp_path, QWEN, GEMMA, "--max-models", at_once, "--io-threads", 2) as s:
        for i in range(120):
            name = NAMES[i % 3]
            more = {"stream": draw.random() < 0.5, "max_tokens": draw.choice([1, 100])}
            sock = s.open_request("/v1/completions", ASK | {"model": name} | more)
            if draw.random() < 0.3:
                sock.settimeout(60)
                assert b"200 OK" in sock.recv(65536)
            time.sleep(draw.choice([0, 0, 0.01, 0.05]))
            sock.close()
        for name in NAMES:
            assert answer(s, name) == alone[name]
        assert len(loaded(s)) <= at_once
        for name in loaded(s):
            assert s.get(f"/stats?model={name}")[1]["engine"]["accounting_errors"] == 0


def test_fifty_swaps_leave_the_memory_and_the_first_prefix(tmp_path, alone):
    """Under load; with everything closed the process has what it had before, within 2 % of what it has with a model."""
    first = {"model": NAMES[0], "prompt": [5 + i % 80 for i in range(150)], "max_tokens": 1, "temperature": 0}
    wrong, n_done, pause, end = [], [0], threading.Event(), threading.Event()

    def client(s, i):
        draw = random.Random(i)
        while not end.is_set():
            if pause.is_set():
                time.sleep(0.02)
                continue
            name = draw.choice(NAMES[:2])
            try:
                if answer(s, name) != alone[name]:
                    wrong.append(name)
            except Exception as e:  # lost
                wrong.append(repr(e))
            n_done[0] += 1

    flags = ("--cache-dir", tmp_path / "kv", "--idle-unload", 1, "--kv-tokens", 1024, "--threads", 1)
    with serving(tmp_path, QWEN, *flags) as s:
        with contextlib.closing(s.connect()) as c:  # answers are remembered by their ids, the latest 4,096 of them
            for _ in range(4200):
                c.request("POST", "/v1/completions", json.dumps({"prompt": [5], "max_tokens": 1}), JSON)
                assert c.getresponse().read()
        s.ok("/v1/completions", first)
        with_a_model = anonymous(s)
        answer(s, NAMES[1])
        answer(s, NAMES[0])
        held = s.stats()["memory"]["used_bytes"]
        threads = [threading.Thread(target=client, args=(s, i)) for i in range(4)]
        for t in threads:
            t.start()
        rested = []
        for n in (15, 30, 50):  # the first of them is the warm-up
            wait_for(lambda n=n: s.n_loads() >= n or wrong, 300)
            pause.set()
            wait_for(lambda: set(states(s).values()) == {"unloaded"}, 120)
            rested.append(anonymous(s))
            pause.clear()
        end.set()
        for t in threads:
            t.join()
        assert not wrong and n_done[0] > s.n_loads() >= 50
        again = s.ok("/v1/completions", first)["usage"]
        assert again["prompt_tokens_details"]["cached_tokens"] >= 128, again  # whole pages of the first conversation
        more = s.stats()["memory"]["used_bytes"] - held  # blocks that are alive, by our own count
        print(rested, n_done, s.n_loads(), more)
    assert abs(more) <= 0.02 * with_a_model * 1024, (held, more)
    assert SANITIZED or max(rested[1:]) - rested[0] <= 0.02 * with_a_model, (rested, with_a_model)
