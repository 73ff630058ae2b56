"""Images from clients to the model (docs/vision.md): every form they come in, what is computed again and what is not, what is
refused and how. The models are tiny ones of noise with the structure of real ones (vision_model.py)."""

import json
import random
import re
import struct
import subprocess
import threading
import zlib

import anthropic
import ollama
import openai
import pytest

from radish_server import BUILD, ROOT, Server
from vision_model import b64, make_model, picture, png, png_of_rows, url

CHAT = "/v1/chat/completions"
FAMILIES = ["qwen2vl", "qwen25vl", "qwen3vl", "gemma3"]


@pytest.fixture(scope="module", params=FAMILIES)
def sees(request, tmp_path_factory):
    s = Server("--threads", "2", "--kv-tokens", "16384", model=make_model(tmp_path_factory.mktemp("m"), request.param))
    yield s
    assert s.stats()["engine"]["accounting_errors"] == 0
    assert s.stop() == 0


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    s = Server("--threads", "2", "--kv-tokens", "16384", model=make_model(tmp_path_factory.mktemp("m"), "qwen25vl"))
    yield s
    assert s.stats()["engine"]["accounting_errors"] == 0
    assert s.stop() == 0


def image(seed=0, **size):
    return {"type": "image_url", "image_url": {"url": url(picture(seed, **size))}}


def words(text):
    return {"type": "text", "text": text}


def user(*content):
    return {"role": "user", "content": list(content)}


def ask(s, messages, **more):
    body = {"messages": messages, "max_tokens": 6, "temperature": 0, "ignore_eos": True, "logprobs": True}
    return s.ok(CHAT, body | more)


def logprobs(answer):
    return [t["logprob"] for t in answer["choices"][0]["logprobs"]["content"]]


def test_a_conversation_computes_its_image_once(sees):
    first = [user(image(1, width=32, height=32), words("What?"))]
    a = ask(sees, first)
    n = a["usage"]["prompt_tokens"]
    assert a["timings"]["prompt_n"] == n - a["timings"]["cache_n"]
    encoded = sees.stats()["images"]["encoded"]
    again = ask(sees, first)
    assert again["timings"]["cache_n"] == n and logprobs(again) == logprobs(a)
    answer = {"role": "assistant", "content": "ok"}
    third = first + [answer, user(words("Why?"))]
    b = ask(sees, third)
    assert b["timings"]["cache_n"] >= n - 16 and b["timings"]["prompt_n"] < 40  # from the answer on
    assert sees.stats()["images"]["encoded"] == encoded  # 0 times
    cold = ask(sees, third, cache_prompt=False)
    assert cold["timings"]["cache_n"] == 0 and logprobs(cold) == logprobs(b)


def test_another_image_is_computed_from_the_image_on(sees):
    text = words("Same text in front of them, some twenty tokens of it.")
    a = ask(sees, [user(text, image(2, width=32, height=32))])
    b = ask(sees, [user(text, image(3, width=32, height=32))])
    assert logprobs(a) != logprobs(b)
    assert 20 < b["timings"]["cache_n"] < a["usage"]["prompt_tokens"] - 4
    assert ask(sees, [user(text, image(3, width=32, height=32))], cache_prompt=False)["choices"] == b["choices"]
    c = ask(sees, [user(text, image(2, width=32, height=32), image(3, width=32, height=32))])
    d = ask(sees, [user(text, image(3, width=32, height=32), image(2, width=32, height=32))])
    assert logprobs(c) != logprobs(d)


def test_a_large_photo_is_no_text(one):
    """10 MB of base64, as a telephone's photo has: it costs memory as bytes, not as a text that becomes tokens; beside a text
    that long there would be none."""
    side, noise = 1600, random.Random(7)
    photo = url(png_of_rows(side, side, b"".join(b"\0" + noise.randbytes(3 * side) for _ in range(side))))
    assert len(photo) > 10_000_000
    got = ask(one, [user(words("What?"), {"type": "image_url", "image_url": {"url": photo, "detail": "low"}})])
    assert got["timings"]["images_n"] == 1
    status, said = one.post(CHAT, {"messages": [user({"type": "text", "image_url": {"url": "x"}, "text": photo})]})
    assert status == 413, said


def test_one_pixel_is_another_image(one):
    def with_pixel(v):
        data = png(56, 56, lambda x, y: (v, 0, 0) if (x, y) == (30, 30) else (x * 3, y * 4, 90))
        return ask(one, [user({"type": "image_url", "image_url": {"url": url(data)}}, words("?"))])

    a, b = with_pixel(0), with_pixel(255)
    assert b["timings"]["cache_n"] < 10 and logprobs(a) != logprobs(b)
    assert with_pixel(0)["timings"]["prompt_n"] == 0


def test_templates_and_tokens_of_images(sees):
    """What /apply-template and /tokenize say of a conversation with images is what a chat about them counts."""
    messages = [user(words("See"), image(40, width=40, height=40), words("and"), image(41), words("?"))]
    text = sees.ok("/apply-template", {"messages": messages})["prompt"]
    name = sees.get("/v1/models")[1]["data"][0]["id"]
    written = "<start_of_image>" if name == "gemma3" else "<|vision_start|><|image_pad|><|vision_end|>"
    assert text.count(written) == 2 and f"See{written}and{written}?" in text
    n = ask(sees, messages)["usage"]["prompt_tokens"]
    got = sees.ok("/tokenize", {"messages": messages, "return_token_strs": True})
    rows = got["token_strs"].count("<image_soft_token>" if written == "<start_of_image>" else "<|image_pad|>")
    assert got["count"] == n == len(got["tokens"]) and min(got["tokens"]) >= 0
    plain = sees.ok("/tokenize", {"messages": [user(words("See"), words("and"), words("?"))]})["count"]
    assert rows == n - plain - (2 * 6 if written == "<start_of_image>" else 2 * 2)  # what stands around them
    bad = [user(words("x"), {"type": "image_url", "image_url": {"url": "data:image/png;base64,!!"}})]
    for path in ("/apply-template", "/tokenize"):
        status, e = sees.post(path, {"messages": bad})
        assert status == 400 and "messages[0].content[1]" in e["error"]["message"]
    with anthropic.Anthropic(base_url=f"http://127.0.0.1:{sees.port}", api_key="x", max_retries=0) as api:
        block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": b64(picture(41))}}
        turns = [user({"type": "text", "text": "See"}, block)]
        count = api.messages.count_tokens(model=name, messages=turns).input_tokens
        assert count == ask(sees, [user(words("See"), image(41))])["usage"]["prompt_tokens"]


def test_clearing_the_cache_forgets_rows_of_images(one):
    messages = [user(image(42), words("What?"))]
    a = ask(one, messages)
    assert one.stats()["images"]["kept_bytes"] > 0
    assert one.request("DELETE", "/v1/cache")[0] == 200
    one.wait_until(lambda: one.stats()["images"]["kept_bytes"] == 0)
    again = ask(one, messages)
    assert again["timings"]["images_encoded_n"] == 1 and logprobs(again) == logprobs(a)


def test_timings_say_when_the_encoder_was_done(one):
    """From where queue_ms begins, as the whole answer is counted: a client knows by it which of a stream's gaps were the encoder's."""
    t = ask(one, [user(words("First"), image(47), image(48), words("These?"))])["timings"]
    assert t["images_encoded_n"] == 2 and t["encoder_ms"] > 0
    assert t["encoder_ms"] <= t["images_ready_ms"] <= t["queue_ms"] + t["prompt_ms"]
    again = ask(one, [user(image(48), words("And this one?"))])["timings"]
    assert again["images_n"] == 1 and again["images_encoded_n"] == 0 and "images_ready_ms" not in again


def test_radish_cache_list_says_where_images_are(one):
    ask(one, [user(image(45), image(46), words("These?"))])
    listed = subprocess.run(
        [BUILD / "radish", "cache", "list", "--url", f"http://127.0.0.1:{one.port}"], capture_output=True, text=True
    )
    assert listed.returncode == 0 and re.search(r"\d+ hits, [12] images?, used", listed.stdout), listed


def test_animations(one):
    """An APNG is its first picture, as the file has it for whoever knows no animations; a GIF is refused by its name."""
    data = picture(44)

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    ihdr_end = 8 + 25
    animated = data[:ihdr_end] + chunk(b"acTL", struct.pack(">II", 2, 0)) + data[ihdr_end:]
    a = ask(one, [user(image(44), words("What?"))])
    b = ask(one, [user({"type": "image_url", "image_url": {"url": url(animated, "apng")}}, words("What?"))])
    assert b["timings"]["prompt_n"] == 0 and b["choices"] == a["choices"]
    gif = {"type": "image_url", "image_url": {"url": url(b"GIF89a" + bytes(40), "gif")}}
    status, e = one.post(CHAT, {"messages": [user(gif)]})
    assert status == 400 and "messages[0].content[0]: a GIF is not taken" in e["error"]["message"]


def test_what_open_webui_sends(one):
    """Its form: a text part, then images as image_url, with fields beside messages that others do not send."""
    content = [words("What is in it?"), {"type": "image_url", "image_url": {"url": url(picture(43))}}]
    body = {
        "model": "qwen25vl",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": content}],
        "max_tokens": 4,
    }
    chunks = one.stream(CHAT, body)
    assert chunks[-1]["usage"]["prompt_tokens"] > 20
    whole = one.ok(CHAT, body | {"stream": False, "stream_options": None})
    assert whole["usage"]["prompt_tokens"] == chunks[-1]["usage"]["prompt_tokens"]


def test_text_that_looks_like_an_image_is_text(one):
    plain = ask(one, [user(words("<|vision_start|><|image_pad|><|vision_end|> hi"))])
    assert plain["usage"]["prompt_tokens"] > 50  # letter by letter in this vocabulary
    special = ask(one, [user(words("<|vision_start|><|image_pad|><|vision_end|> hi"))], parse_special=True)
    assert special["usage"]["prompt_tokens"] < 40
    a = ask(one, [user(words("<|image_pad|>"), image(4), words("<|image_pad|> hi"))], cache_prompt=False)
    b = ask(one, [user(words("<|image_pad|>"), image(4), words("<|image_pad|> hi"))])
    assert logprobs(a) == logprobs(b)


def test_every_form_is_the_same_prompt(one):
    data = picture(5)
    forms = [
        {"type": "image_url", "image_url": {"url": url(data), "detail": "auto"}},
        {"type": "image_url", "image_url": url(data)},
        {"type": "input_image", "image_url": url(data), "detail": "high"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": b64(data)}},
        {"type": "image", "data": b64(data), "mimeType": "image/png"},
        {"type": "image", "image": url(data)},
    ]
    first = ask(one, [user(forms[0], words("Which?"))])
    for form in forms[1:]:
        a = ask(one, [user(form, words("Which?"))])
        assert a["timings"]["prompt_n"] == 0 and a["choices"][0]["message"] == first["choices"][0]["message"]


def test_real_clients(one):
    data = picture(6)
    base = f"http://127.0.0.1:{one.port}"
    with openai.OpenAI(base_url=base + "/v1", api_key="x", max_retries=0) as api:
        content = [words("See"), {"type": "image_url", "image_url": {"url": url(data)}}]
        chat = api.chat.completions.create(model="qwen25vl", messages=[user(*content)], max_tokens=4)
        assert chat.usage.prompt_tokens > 8
        streamed = api.chat.completions.create(model="qwen25vl", messages=[user(*content)], max_tokens=4, stream=True)
        assert len(list(streamed)) >= 2
        item = [
            {"type": "input_text", "text": "See"},
            {"type": "input_image", "image_url": url(data), "detail": "auto"},
        ]
        r = api.responses.create(model="qwen25vl", input=[user(*item)], max_output_tokens=16)
        assert r.usage.input_tokens == chat.usage.prompt_tokens
        assert r.usage.input_tokens_details.cached_tokens > 8
        with pytest.raises(openai.BadRequestError, match="content\\[1\\]"):
            bad = {"type": "image_url", "image_url": {"url": "data:image/png;base64,!!"}}
            api.chat.completions.create(model="qwen25vl", messages=[user(words("x"), bad)])
    with anthropic.Anthropic(base_url=base, api_key="x", max_retries=0) as api:
        block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": b64(data)}}
        m = api.messages.create(model="qwen25vl", max_tokens=4, messages=[user({"type": "text", "text": "See"}, block)])
        assert m.usage.input_tokens + m.usage.cache_read_input_tokens == chat.usage.prompt_tokens
        use = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [block]}
        tools = [{"name": "look", "input_schema": {"type": "object"}}]
        turns = [user(words("Look.")), {"role": "assistant", "content": [use]}, user(result)]
        whole = {"extra_body": {"temperature": 0, "ignore_eos": True}}  # noise may draw the end before
        m = api.messages.create(model="qwen25vl", max_tokens=4, messages=turns, tools=tools, **whole)
        assert m.usage.output_tokens == 4
    client = ollama.Client(host=base)
    answer = client.chat(model="qwen25vl", messages=[{"role": "user", "content": "See", "images": [data]}])
    assert answer.prompt_eval_count > 8
    assert (
        client.generate(model="qwen25vl", prompt="See", images=[data], options={"num_predict": 3}).response is not None
    )


def damaged(data, seed):
    r = random.Random(seed)
    out = bytearray(data)
    for _ in range(r.randint(1, 12)):
        out[r.randrange(len(out))] = r.randrange(256)
    return bytes(out[: r.randint(1, len(out))] if seed % 3 == 0 else out)


def test_hostile_images_get_400_that_names_the_part(one):
    bomb = png(1, 1, lambda x, y: (0, 0, 0)).replace(b"\0\0\0\x01\0\0\0\x01", b"\0\0\xea\x60\0\0\xea\x60", 1)
    for bytes_ in (b"", b"GIF89a" + bytes(40), b"BM" + bytes(80), b"\x89PNG\r\n\x1a\n", bomb, b"\xff\xd8\xff\xe0" * 9):
        status, e = one.post(CHAT, {"messages": [user(words("x"), words("y"), {"type": "image", "data": b64(bytes_)})]})
        assert status == 400 and "messages[0].content[2]" in e["error"]["message"], e
    for part in (
        {"type": "image_url"},
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}},
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
        {"type": "image_url", "image_url": {"url": "data:image/png,abc"}},
        {"type": "image_url", "image_url": {"url": 7}},
        {"type": "image", "source": {"type": "base64"}},
        {"type": "input_image", "file_id": "file-1"},
        {"type": "image", "data": "A==="},
    ):
        status, e = one.post(CHAT, {"messages": [user(words("x")), user(part)]})
        assert status == 400 and "messages[1].content[0]" in e["error"]["message"], (part, e)
    good = 0
    for seed in range(300):
        status, e = one.post(
            CHAT, {"messages": [user({"type": "image", "data": b64(damaged(picture(7), seed))})], "max_tokens": 1}
        )
        good += status == 200
        assert status == 200 or (status == 400 and "messages[0].content[0]" in e["error"]["message"]), e
    assert good < 250
    status, e = one.post(CHAT, {"messages": [user(*[image(i, width=8, height=8) for i in range(100)])]})
    assert status == 400 and "64" in e["error"]["message"]
    ask(one, [user(image(8), words("still there"))])


def test_a_narrow_picture_and_a_model_that_does_not_see(one, small):
    thin = png(600, 1, lambda x, y: (x % 256, 0, 0))
    status, e = one.post(CHAT, {"messages": [user({"type": "image", "data": b64(thin)})]})
    assert status == 400 and "messages[0].content[0]" in e["error"]["message"]
    status, e = small.post(CHAT, {"messages": [user(image())]})
    assert status == 400 and "takes no images" in e["error"]["message"]


def test_clients_that_leave_and_many_at_once(one):
    wanted = [logprobs(ask(one, [user(image(20 + i), words("Many"))], cache_prompt=False)) for i in range(4)]
    got = [None] * 4

    def stay(i):
        got[i] = logprobs(ask(one, [user(image(20 + i), words("Many"))]))

    def leave(i):
        body = {"messages": [user(image(40 + i, width=300, height=200))], "stream": True, "max_tokens": 50}
        one.open_request(CHAT, body).close()

    threads = [threading.Thread(target=stay, args=(i,)) for i in range(4)]
    threads += [threading.Thread(target=leave, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == wanted
    one.wait_idle()


def test_tokens_are_counted_with_images_and_explained(sees, one):
    def messages(seed, text="How many?"):
        return [user(words("Look at this")), {"role": "assistant", "content": "ok"}, user(image(seed), words(text))]

    ask(sees, messages(9))
    told = sees.ok("/v1/cache/explain", {"messages": messages(10)})
    other = told["difference"]
    assert other["message"] == 2 and other["part"] == "message" and told["cause"] == "different", told
    assert other["sent"].startswith("[image]") and other["stored"].startswith("[image]"), told
    told = sees.ok("/v1/cache/explain", {"messages": messages(9, "How old?")})
    other = told["difference"]
    assert other["message"] == 2 and other["sent"].startswith("old") and told["stored_tokens"] > 20, told
    assert ask(sees, messages(9, "How old?"))["timings"]["cache_n"] == told["computed_tokens"]
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": b64(picture(9))}}
    counted = one.ok("/v1/messages/count_tokens", {"model": "qwen25vl", "messages": [user(block, words("How many?"))]})
    assert counted["input_tokens"] == ask(one, [user(image(9), words("How many?"))])["usage"]["prompt_tokens"]


def test_the_command_line(tmp_path):
    model = make_model(tmp_path, "qwen25vl")
    (tmp_path / "a.png").write_bytes(picture(30))
    (tmp_path / "b.png").write_bytes(picture(31))
    (tmp_path / "c.png").write_bytes(b"no picture")
    base = [BUILD / "radish", "run", model, "--max-tokens", "6", "--temperature", "0", "--threads", "1", "--ignore-eos"]

    def said(*flags, code=0):
        r = subprocess.run([*base, *flags], capture_output=True, text=True, cwd=tmp_path, timeout=120)
        assert r.returncode == code, r.stderr
        return r.stdout if code == 0 else r.stderr

    a, b = said("--image", "a.png", "What?"), said("--image", "b.png", "What?")
    assert (
        a == said("--image", "a.png", "What?")
        and len({a, b, said("What?"), said(*"--image a.png --image b.png What?".split())}) > 1
    )
    assert "messages[0].content[0]" in said("--image", "c.png", "What?", code=1)
    assert "d.png" in said("--image", "d.png", "What?", code=1)
    assert "--raw" in said("--image", "a.png", "--raw", "What?", code=1)


def test_an_image_in_a_chat(tmp_path):
    model = make_model(tmp_path, "qwen25vl")
    (tmp_path / "a.png").write_bytes(picture(30))
    lines = (
        "/image nowhere.png\n/image a.png\nWhat?\n/save one.json\n/retry\n/save two.json\nAnd then?\n/save three.json\n"
    )
    r = subprocess.run(
        [BUILD / "radish", "chat", model, "--max-tokens", "4", "--temperature", "0", "--threads", "1", "--ignore-eos"],
        input=lines,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
    )
    one, two, three = (json.loads((tmp_path / f"{n}.json").read_text())["messages"] for n in ("one", "two", "three"))
    assert "nowhere.png" in r.stderr and one == two == three[:2], r.stderr
    assert [part["type"] for part in one[0]["content"]] == ["image", "text"] and one[0]["content"][1]["text"] == "What?"
    assert three[2]["content"] == "And then?" and len(three) == 4


def test_bench_measures_an_image(tmp_path):
    model = make_model(tmp_path, "qwen25vl")
    (tmp_path / "a.png").write_bytes(png(300, 200, lambda x, y: (x % 256, y, 7)))
    base = [BUILD / "radish", "bench", model, "-p", "0", "-n", "2", "-r", "3", "--threads", "1", "--image"]
    r = subprocess.run([*base, tmp_path / "a.png", "--json"], capture_output=True, text=True, timeout=120)
    assert r.returncode == 0, r.stderr
    image = json.loads(r.stdout)["image"]
    assert image["prompt_tokens"] > 70 and image["encode_ms"] > 0
    assert image["cold_ms"] > image["encode_ms"]  # each round's is cold
    r = subprocess.run([*base, tmp_path / "a.png"], capture_output=True, text=True, timeout=120)
    assert "never seen" in r.stdout and "seen in another conversation" in r.stdout and "asked again" in r.stdout
    for name, why in ((__file__, "no picture"), ("/nowhere.png", "no such file")):
        r = subprocess.run([*base, name], capture_output=True, text=True, timeout=120)
        assert r.returncode == 1 and why in r.stderr and not r.stdout, r.stderr


def test_no_io_thread_decodes_a_picture(make_server, tmp_path):
    library, log = tmp_path / "decode_watch.so", tmp_path / "threads"
    command = ["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", library, ROOT / "tests/server/decode_watch.c", "-ldl"]
    subprocess.run(command, check=True)
    s = make_server(
        "--threads",
        "1",
        "--kv-tokens",
        "4096",
        model=make_model(tmp_path, "qwen25vl"),
        env={"LD_PRELOAD": str(library), "DECODE_WATCH": str(log)},
    )
    data = picture(4, width=16, height=16)  # a small body, which no size sends to a worker
    chat = {"messages": [user({"type": "image_url", "image_url": {"url": url(data)}}, words("What?"))]}
    source = {"type": "base64", "media_type": "image/png", "data": b64(data)}
    first = {"input": [user({"type": "input_image", "image_url": url(data)})]}
    kept = s.ok("/v1/responses", first | {"max_output_tokens": 2})["id"]
    follow = {"input": "And?", "previous_response_id": kept, "truncation": "auto", "max_output_tokens": 2}
    for path, body in (
        (CHAT, chat | {"max_tokens": 2}),
        ("/v1/responses", follow),
        ("/tokenize", chat),
        ("/apply-template", chat),
        ("/v1/cache/explain", chat),
        ("/v1/chat/completions/input_tokens", chat),
        ("/v1/chat/completions/render", chat),
        ("/v1/responses/input_tokens", first),
        ("/v1/messages/count_tokens", {"messages": [user({"type": "image", "source": source})]}),
        ("/tokenize", json.dumps(chat).replace("image_url", "\\u0069mage_url").encode()),
    ):
        log.unlink(missing_ok=True)
        assert s.request("POST", path, body)[0] == 200
        assert set(log.read_text().split()) <= {"prep", "radish-work"}, path


def test_what_only_reads_a_prompt_reads_its_images(one):
    """As many tokens are told by each as the request has; a classifier of text says that it is one."""
    messages = [user(image(3, width=32, height=32), words("What?"))]
    n = ask(one, messages, max_tokens=1)["usage"]["prompt_tokens"]
    source = {"type": "base64", "media_type": "image/png", "data": b64(picture(3, width=32, height=32))}
    blocks = [{"role": "user", "content": [{"type": "image", "source": source}, words("What?")]}]
    assert one.ok("/v1/messages/count_tokens", {"messages": blocks})["input_tokens"] == n
    assert len(one.ok(CHAT + "/render", {"messages": messages})["token_ids"]) == n
    assert one.ok("/tokenize", {"messages": messages})["count"] == n
    assert "<|image_pad|>" in one.ok("/apply-template", {"messages": messages})["prompt"]
    body = {"messages": messages, "labels": ["a", "b"]}
    status, answer = one.post("/v1/classify", body)
    assert status == 400 and "messages[0].content[0]: only text" in answer["error"]["message"]


def striped(width, height, seed):
    """A large picture that takes no time to make: each row is the one above, moved."""
    row = bytes((x * 3 + seed) % 256 for x in range(width * 3))
    rows = b"".join(b"\0" + row[y * 7 % 97 :] + row[: y * 7 % 97] for y in range(height))
    return png_of_rows(width, height, rows, 1)


def test_pictures_of_4k_from_many_clients_are_bounded_in_memory(make_server, tmp_path):
    """Each takes 24 MiB decoded and up to 190 MiB processed: as many at once as there is memory for, and no more."""
    s = make_server("--threads", "1", "--kv-tokens", "8192", model=make_model(tmp_path, "qwen25vl"))

    def mib(key):
        lines = open(f"/proc/{s.process.pid}/status").read().splitlines()
        return next(int(x.split()[1]) for x in lines if x.startswith(key)) >> 10

    pictures = [url(striped(3840, 2160, i)) for i in range(4)]
    at_first, statuses = mib("VmRSS"), []

    def run(i):
        for k in range(2):
            part = {"type": "image_url", "image_url": {"url": pictures[(i + k) % 4]}}
            status, answer = s.post(CHAT, {"messages": [user(part, words(str(i)))], "max_tokens": 2})
            assert status in (200, 429) or "context length" in answer["error"]["message"], answer
            statuses.append(status)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(statuses) == 24 and any(status != 429 for status in statuses)
    assert mib("VmHWM") < at_first + 1024, "the memory of images (image_pot.h) and what clients sent"
    s.wait_until(lambda: mib("VmRSS") < at_first + 96)
    assert s.stats()["engine"]["accounting_errors"] == 0


def test_a_full_memory_of_images_is_429_and_too_much_of_a_request_400(make_server, tmp_path):
    """Plain pictures of 73 MiB processed: six of a request while another has six are too many now, eleven for ever."""
    s = make_server("--threads", "1", "--kv-tokens", "8192", model=make_model(tmp_path, "qwen25vl"))

    def plain(shade):
        row = b"\0" + bytes([shade]) * 3 * 1792
        return {"type": "image_url", "image_url": {"url": url(png_of_rows(1792, 1792, row * 1792, 9))}}

    parts, seen = [plain(i) for i in range(11)], []

    def run(n):
        status, headers, answer = s.request("POST", CHAT, {"messages": [user(*parts[:n], words("?"))], "max_tokens": 2})
        seen.append((status, headers.get("retry-after"), json.loads(answer)["error"]["message"]))

    run(11)
    assert seen[0][0] == 400 and "messages[0].content[10]: the request's images up to here take more" in seen[0][2]
    full = []
    for _ in range(20):  # they meet only if one comes while another's are decoded
        threads = [threading.Thread(target=run, args=(6,)) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        full = [x for x in seen[1:] if x[0] == 429]
        if full:
            break
    assert full and all(x[1] == "1" and "too many images of requests wait: try again later" in x[2] for x in full)
    run(6)  # now there is room: what is too much is the context
    assert seen[-1][0] == 400 and "context length" in seen[-1][2]
    assert all(status in (400, 429) for status, _, _ in seen)
    assert s.stats()["engine"]["accounting_errors"] == 0
