"""Several ranks behind the server (docs/tensor-parallel.md): clients, the disk cache and hang-ups see one model."""

import json
import re
import subprocess
import threading

import pytest

from lora_files import write_peft
from radish_server import BUILD, ROOT, TINY, Server, model_path
from vision_model import make_model, picture, url

CHAT = "/v1/chat/completions"
ASK = {
    "messages": [{"role": "user", "content": "Name three rivers of Europe and a city on each of them."}],
    "temperature": 0,
    "max_tokens": 40,
}


def start(folder, ranks, *more):
    return Server("--threads", "2", "--tp", str(ranks), "--kv-tokens", "16384", "--cache-dir", str(folder), *more)


def text(answer):
    return answer["choices"][0]["message"]["content"]


def test_answers_are_those_of_one_rank_and_its_disk_cache_is_read(tmp_path):
    with_one = start(tmp_path, 1)
    expected = text(with_one.ok(CHAT, ASK))
    assert with_one.stop() == 0
    two = start(tmp_path, 2)
    answer = two.ok(CHAT, ASK)
    assert text(answer) == expected
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0  # of one rank's pages
    assert "2 ranks of " in json.dumps(two.get("/props")[1]) + json.dumps(two.stats())
    drawn = ASK | {"temperature": 0.9, "seed": 7, "logprobs": True, "top_logprobs": 3}
    first = two.ok(CHAT, drawn)
    again = two.ok(CHAT, drawn)
    assert first["choices"] == again["choices"]
    assert two.stop() == 0
    three = start(tmp_path, 3)  # the heads of SmolLM2 are 3 groups; 2 ranks had 1 and 2 of them
    assert three.ok(CHAT, drawn)["choices"] == first["choices"]
    assert three.stats()["engine"]["accounting_errors"] == 0
    assert three.stop() == 0


def test_many_clients_and_hang_ups(tmp_path):
    s = start(tmp_path, 2)
    alone = [text(s.ok(CHAT, ASK | {"seed": i, "temperature": 0.8})) for i in range(4)]
    got = [None] * 4

    def ask(i):
        got[i] = text(s.ok(CHAT, ASK | {"seed": i, "temperature": 0.8}))

    def leave():
        with s.open_request(CHAT, ASK | {"stream": True, "max_tokens": 2000, "ignore_eos": True}) as c:
            assert c.recv(4096)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    threads += [threading.Thread(target=leave) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == alone
    s.wait_idle()
    assert s.stats()["engine"]["accounting_errors"] == 0
    assert s.stop() == 0


def test_adapters_are_each_ranks_part(tmp_path):
    flags, answers = [], []
    for i in range(2):
        write_peft(tmp_path / f"a{i}", i)
        flags += ["--lora", f"a{i}={tmp_path / f'a{i}'}"]
    body = {"prompt": "hello there", "max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": 3}
    for ranks in (1, 3):
        s = Server("--threads", "2", "--tp", str(ranks), "--kv-tokens", "4096", *flags, model=TINY)
        got = []
        for model in ("a0", "a1", "tiny-llama:a0", ""):
            first = s.ok("/v1/completions", body | {"model": model})
            again = s.ok("/v1/completions", body | {"model": model})
            assert again["choices"] == first["choices"] and again["timings"]["cache_n"] > 0
            got.append(first["choices"])
        assert s.request("POST", "/v1/unload_lora_adapter", {"lora_name": "a1"})[0] == 200
        assert s.ok("/v1/completions", body | {"model": "a0"})["choices"] == got[0]
        assert s.stop() == 0
        answers.append(got)
    assert answers[0] == answers[1]
    assert len({json.dumps(a) for a in answers[0][:2] + answers[0][3:]}) == 3


@pytest.mark.parametrize("family", ["qwen2vl", "qwen25vl", "qwen3vl", "gemma3"])
def test_images_are_those_of_one_rank(tmp_path, family):
    model = make_model(tmp_path, family)
    image = {"type": "image_url", "image_url": {"url": url(picture(3, width=48, height=32))}}
    body = {
        "messages": [{"role": "user", "content": [image, {"type": "text", "text": "What?"}]}],
        "max_tokens": 6,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": True,
    }
    answers = []
    for ranks in (1, 2):
        s = Server("--threads", "2", "--tp", str(ranks), "--kv-tokens", "16384", model=model)
        first, again = s.ok(CHAT, body), s.ok(CHAT, body)
        assert again["choices"] == first["choices"] and again["timings"]["images_encoded_n"] == 0
        answers.append(first["choices"])
        assert s.stats()["engine"]["accounting_errors"] == 0
        assert s.stop() == 0
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    "flags, told",
    [
        (["--tp", "9"], "--tp"),
        (["--tp", "2", "--lora", "a=nowhere"], "there is no nowhere"),
        (["--tp", "2", "--reduce", "nccl", "--device", "cpu"], "--reduce nccl is for GPUs"),
        (["--tp", "2", "--reduce", "fast"], "auto|peer|nccl|host"),
        (["--tp", "2", "--backend", "process:true"], "2 ranks"),
    ],
)
def test_what_cannot_be_is_told(flags, told):
    command = [BUILD / "radish", "run", model_path(), *flags, "Hello"]
    r = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert r.returncode != 0 and told in r.stderr, r.stderr


@pytest.fixture(scope="module")
def stall_library(tmp_path_factory):
    library = tmp_path_factory.mktemp("stall") / "stall_thread.so"
    source = ROOT / "tests/server/stall_thread.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", library, source, "-ldl"], check=True)
    return library


def prompt(i):
    return {"prompt": f"Chapter {i}. " + "The river went on between the hills and the towns of the plain. " * 6}


def test_what_never_ends_keeps_no_server_whose_device_has_failed(tmp_path, stall_library):
    """A rank that stands still, and a thread that the engine's end waits for, as it waits for a GPU's kernel: status 70."""
    stall, log = tmp_path / "stall", tmp_path / "log"
    env = {"LD_PRELOAD": str(stall_library), "STALL_FILE": str(stall), "STALL_AT": "lock"}
    flags = ("--threads", "4", "--tp", "2", "--kv-tokens", "16384", "--cache-dir", str(tmp_path / "kv"))
    with open(log, "wb") as f:
        s = Server(*flags, "--tp-patience", "1", env=env | {"STALL_THREAD": "rank 1,saver"}, log=f)
    stall.touch()
    status, _, answer = s.request("POST", "/v1/completions", prompt(0) | {"max_tokens": 8})
    assert status == 503, answer
    assert s.process.wait(90) == 70
    assert b"the engine is stuck: stopped without it" in log.read_bytes()


@pytest.mark.parametrize("where", ["word", "lock"])
def test_a_rank_that_stops_under_load_ends_every_request_and_the_server(tmp_path, stall_library, where):
    """Wherever it stops: exit status 70; who comes after a restart is served from the disk, in the same words."""
    stall, log = tmp_path / "stall", tmp_path / "log"
    asked = prompt(0) | {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
    flags = ("--threads", "4", "--tp", "2", "--kv-tokens", "16384", "--cache-dir", str(tmp_path / "kv"))
    env = {"LD_PRELOAD": str(stall_library), "STALL_FILE": str(stall), "STALL_THREAD": "rank 1", "STALL_AT": where}
    with open(log, "wb") as f:
        s = Server(*flags, "--tp-patience", "2", env=env, log=f)
    first = s.ok("/v1/completions", asked)
    s.wait_until(lambda: s.stats()["disk"]["pages_written"] > 5)
    ends = []

    def load(i, stream):
        body = prompt(i) | {"max_tokens": 3000, "ignore_eos": True, "stream": stream}
        status, _, answer = s.request("POST", "/v1/completions", body)
        ends.append((status, str(answer)))

    threads = [threading.Thread(target=load, args=(i, i % 2 == 0)) for i in range(1, 7)]
    for t in threads:
        t.start()
    s.wait_until(lambda: s.stats()["requests"]["decode"] >= 4)
    stall.touch()
    for t in threads:
        t.join(60)
    assert not any(t.is_alive() for t in threads) and len(ends) == len(threads)
    for status, answer in ends:  # before its first token, or in its stream
        assert status == 503 or (status == 200 and '"code":503' in answer), (status, answer[-300:])
    assert s.process.wait(60) == 70
    assert re.search(rb"error rank 1 of 2 did not come (to a meeting of the ranks|back) in time", log.read_bytes())
    s = Server(*flags)
    again = s.ok("/v1/completions", asked)
    assert again["choices"] == first["choices"] and again["timings"]["cache_n"] > 0
    assert s.stop() == 0
