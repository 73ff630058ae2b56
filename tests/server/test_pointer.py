"""A GUI-Actor points (docs/vision.md): where, cold and from the cache, with images that have to be encoded again, in streams,
from the command line. What it points at is compared with its own code's points (tests/golden/make_pointer.py)."""

import json
import subprocess
import threading

import pytest

from radish_server import BUILD, ROOT, Server
from test_images import image, user, words
from vision_model import b64, make_model, make_pointing_model, picture, url

CHAT = "/v1/chat/completions"
START, PAD, END = 104, 105, 106
GOLDEN = json.loads((ROOT / "tests/golden/vision/guiactor/points.json").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("m"), "guiactor")


@pytest.fixture(scope="module")
def actor(folder):
    s = Server("--threads", "2", "--kv-tokens", "16384", model=folder)
    yield s
    assert s.stats()["engine"]["accounting_errors"] == 0
    assert s.stop() == 0


def ask(s, messages, **more):
    """The noise is made to begin with <|pointer_start|>, again and again; what follows that is the server's."""
    body = {"messages": messages, "max_tokens": 7, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    return s.ok(CHAT, body | {"logit_bias": {str(START): 100}} | more)["choices"][0]


def near(a, b):
    return abs(a - b) < 1e-3


def test_points_are_those_of_its_own_code(actor):
    for case in GOLDEN:
        content = [image(seed, width=w, height=h) for seed, w, h in case["pictures"]]
        choice = ask(actor, [user(*content, words(case["text"]))])
        assert choice["token_ids"] == [START, PAD, END] * 2 + [START]
        assert choice["message"]["content"] == ""
        assert len(choice["pointers"]) == 2
        for got, want in zip(choice["pointers"], case["pointers"]):
            assert len(got["points"]) == min(len(want), 5)
            for p, (x, y, score) in zip(got["points"], want):
                assert near(p["x"], x) and near(p["y"], y) and near(p["score"], score) and p["image"] == 0


def test_points_are_the_same_from_the_cache(actor):
    messages = [user(image(11, width=96, height=72), words("Close the window."))]
    cold = ask(actor, messages, cache_prompt=False)
    assert ask(actor, messages) == cold
    encoded = actor.stats()["images"]["encoded"]
    body = {"messages": messages, "max_tokens": 7, "temperature": 0, "ignore_eos": True, "logit_bias": {START: 100}}
    again = actor.ok(CHAT, body)
    assert again["timings"]["prompt_n"] == 0 and again["choices"][0]["pointers"] == cold["pointers"]
    assert actor.stats()["images"]["encoded"] == encoded  # its rows are kept
    longer = messages + [{"role": "assistant", "content": ""}, user(words("Again."))]
    assert ask(actor, longer, cache_prompt=False)["pointers"] == ask(actor, longer)["pointers"] != cold["pointers"]


def test_after_a_restart_rows_come_from_the_disk(folder, tmp_path):
    options = ["--threads", "2", "--kv-tokens", "16384", "--cache-dir", str(tmp_path / "kv")]
    messages = [user(image(12, width=96, height=72), words("Close the window."))]
    s = Server(*options, model=folder)
    cold = ask(s, messages)
    assert s.stop() == 0
    s = Server(*options, model=folder)
    assert ask(s, messages) == cold and s.stats()["images"]["encoded"] == 0
    assert s.stop() == 0


def test_several_images_are_looked_at_together(actor):
    two = [image(13, width=96, height=72), image(14, width=48, height=96)]
    both = ask(actor, [user(*two, words("Where?"))])
    assert both == ask(actor, [user(*two, words("Where?"))], cache_prompt=False)
    seen = {p["image"] for pointer in both["pointers"] for p in pointer["points"]}
    assert seen <= {0, 1} and len(both["pointers"]) == 2
    assert all(0 < p[k] < 1 for pointer in both["pointers"] for p in pointer["points"] for k in ("x", "y"))


def test_what_does_not_point_costs_nothing(actor):
    plain = ask(actor, [user(image(15), words("Hi"))], logit_bias={str(START): -100})
    assert "pointers" not in plain
    text = ask(actor, [user(words("Hi"))])  # no image, nothing to point at, and nothing is forced
    assert "pointers" not in text and text["token_ids"] == [START] * 7
    cut = ask(actor, [user(image(15), words("Hi"))], max_tokens=2)  # <|pointer_pad|> is the last: it has no row
    assert cut["token_ids"] == [START, PAD] and "pointers" not in cut
    short = ask(actor, [user(image(15), words("Hi"))], max_tokens=3)
    assert short["token_ids"] == [START, PAD, END] and len(short["pointers"]) == 1


def test_a_stream_has_them_at_its_end(actor):
    messages = [user(image(16, width=96, height=72), words("Open the menu."))]
    whole = ask(actor, messages)
    body = {"messages": messages, "max_tokens": 7, "temperature": 0, "ignore_eos": True, "logit_bias": {START: 100}}
    chunks = [c["choices"][0] for c in actor.stream(CHAT, body)]
    found = [c["pointers"] for c in chunks if "pointers" in c]
    assert found == [whole["pointers"]]


def events(s, path, body):
    status, _, raw = s.request("POST", path, body | {"stream": True})
    assert status == 200, raw
    return [json.loads(x.removeprefix("data: ")) for x in raw.decode().splitlines() if x.startswith("data: {")]


def test_every_api_has_them(tmp_path):
    s = Server("--threads", "2", "--kv-tokens", "16384", model=make_pointing_model(tmp_path))
    seen = picture(16, width=96, height=72)
    want = s.ok(CHAT, {"messages": [user(image(16, width=96, height=72))], "max_tokens": 3, "temperature": 0})[
        "choices"
    ][0]["pointers"]
    assert len(want) == 1 and want[0]["points"]

    part = {"type": "input_image", "image_url": url(seen)}
    body = {"input": [{"role": "user", "content": [part]}], "max_output_tokens": 3, "temperature": 0}
    assert s.ok("/v1/responses", body)["pointers"] == want
    told = [e["response"] for e in events(s, "/v1/responses", body) if "response" in e]
    assert told[-1]["pointers"] == want and not any("pointers" in r for r in told[:-1])

    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": b64(seen)}}
    body = {"messages": [{"role": "user", "content": [block]}], "max_tokens": 3, "temperature": 0}
    assert s.ok("/v1/messages", body)["pointers"] == want
    assert [e["pointers"] for e in events(s, "/v1/messages", body) if e["type"] == "message_delta"] == [want]

    message = {"role": "user", "content": "", "images": [b64(seen)]}
    body = {
        "model": "guiactor",
        "messages": [message],
        "options": {"num_predict": 3, "temperature": 0},
        "stream": False,
    }
    assert s.ok("/api/chat", body)["pointers"] == want
    assert s.stop() == 0


def test_many_at_once_and_some_that_hang_up(actor):
    def messages(i):
        return [user(image(20 + i % 3, width=96, height=72), words(f"Number {i}."))]

    alone = [ask(actor, messages(i), cache_prompt=False)["pointers"] for i in range(9)]
    got = [None] * 9

    def run(i):
        got[i] = ask(actor, messages(i), cache_prompt=i % 2 == 0)["pointers"]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(9)]
    for t in threads:
        t.start()
    for i in range(6):
        actor.open_request(
            CHAT, {"messages": messages(i), "max_tokens": 900, "logit_bias": {START: 100}, "stream": True}
        ).close()
    for t in threads:
        t.join()
    assert got == alone


def test_the_command_line_prints_them(tmp_path):
    folder = make_pointing_model(tmp_path)
    file = tmp_path / "screen.png"
    file.write_bytes(picture(1, width=96, height=72))
    run = [str(BUILD / "radish"), "run", str(folder), "--image", str(file), "--temperature", "0", "--max-tokens", "3"]
    out = subprocess.run([*run, "Hi"], capture_output=True, text=True, timeout=60)
    assert out.returncode == 0 and "\npoint 1: x 0." in out.stdout and "in image 1 (score 0." in out.stdout, out
    assert "point" not in subprocess.run([*run[:-1], "1", "Hi"], capture_output=True, text=True, timeout=60).stdout
