"""Videos as lists of frames (docs/vision.md), and pictures that Gemma 3 sees in parts: on tiny models of noise with the structure of
real ones (vision_model.py)."""

import pytest

from radish_server import Server
from vision_model import b64, make_model, picture, png, url

CHAT = "/v1/chat/completions"
FLAGS = ("--threads", "2", "--kv-tokens", "16384")


@pytest.fixture(scope="module", params=["qwen2vl", "qwen25vl", "qwen3vl"])
def sees(request, tmp_path_factory):
    s = Server(*FLAGS, model=make_model(tmp_path_factory.mktemp("m"), request.param))
    s.family = request.param
    yield s
    assert s.stats()["engine"]["accounting_errors"] == 0
    assert s.stop() == 0


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    s = Server(*FLAGS, model=make_model(tmp_path_factory.mktemp("m"), "gemma3"))
    yield s
    assert s.stats()["engine"]["accounting_errors"] == 0
    assert s.stop() == 0


def frames(n, first=0, **size):
    size = size or {"width": 40, "height": 30}
    return [picture(first + k, **size) for k in range(n)]


def video(n, first=0, **more):
    return {"type": "video", "video": [url(f) for f in frames(n, first)]} | more


def words(text):
    return {"type": "text", "text": text}


def image(data):
    return {"type": "image_url", "image_url": {"url": url(data)}}


def user(*content):
    return {"role": "user", "content": list(content)}


def ask(s, *content, **more):
    body = {"messages": [user(*content)], "max_tokens": 6, "temperature": 0, "ignore_eos": True, "logprobs": True}
    return s.ok(CHAT, body | more)


def logprobs(answer):
    return [t["logprob"] for t in answer["choices"][0]["logprobs"]["content"]]


def refused(s, *content, **more):
    status, answer = s.post(CHAT, {"messages": [user(*content)], "max_tokens": 2} | more)
    assert status == 400, answer
    return answer["error"]["message"]


def test_a_video_is_computed_once_and_exactly(sees):
    a = ask(sees, video(5), words("What happens?"))
    n = a["usage"]["prompt_tokens"]
    assert a["timings"]["images_n"] == (3 if sees.family == "qwen3vl" else 1)
    encoded = sees.stats()["images"]["encoded"]
    again = ask(sees, video(5), words("What happens?"))
    assert again["timings"]["cache_n"] == n and logprobs(again) == logprobs(a)
    later = ask(sees, video(5), words("What happens? And then?"))
    assert later["timings"]["cache_n"] > n / 2 and sees.stats()["images"]["encoded"] == encoded
    cold = ask(sees, video(5), words("What happens? And then?"), cache_prompt=False)
    assert cold["timings"]["cache_n"] == 0 and logprobs(cold) == logprobs(later)


def test_another_frame_or_speed_is_another_video(sees):
    a = ask(sees, video(4), words("?"))
    other = ask(sees, {"type": "video", "video": [url(f) for f in [*frames(3), *frames(1, 9)]]}, words("?"))
    assert logprobs(other) != logprobs(a) and other["timings"]["prompt_n"] > 0
    faster = ask(sees, video(4, fps=0.5), words("?"))
    assert faster["timings"]["prompt_n"] > 0 or sees.family == "qwen2vl"  # which does not know how fast a video is
    assert (logprobs(faster) != logprobs(a)) == (sees.family != "qwen2vl")
    assert ask(sees, video(4, fps=2), words("?"))["timings"]["prompt_n"] == 0  # 2 where nothing is said
    many = [url(f) for f in frames(6, width=96, height=72)]  # of a size that does not depend on how many there are
    a = ask(sees, {"type": "video", "video": many[:4]}, words("?"))
    longer = ask(sees, {"type": "video", "video": many}, words("?"))
    if sees.family == "qwen3vl":  # pairs of frames are images: those of the beginning are known
        assert longer["timings"]["cache_n"] > 0.8 * a["usage"]["prompt_tokens"]
    cold = ask(sees, {"type": "video", "video": many}, words("?"), cache_prompt=False)
    assert logprobs(cold) == logprobs(longer)


def test_every_form_is_the_same_prompt(sees):
    data = [b64(f) for f in frames(3, 20)]
    one_url = "data:video/jpeg;base64," + ",".join(data)  # as vLLM has it
    forms = [
        {"type": "video", "video": [url(f) for f in frames(3, 20)], "fps": 1},
        {"type": "video", "video": data, "sample_fps": 1.0},
        {"type": "video", "video": [image(f) for f in frames(3, 20)], "fps": 1},
        {"type": "video_url", "video_url": {"url": one_url}, "fps": 1},
        {"type": "video_url", "video_url": one_url, "fps": 1},
        {"type": "video_url", "video_url": {"url": one_url, "fps": 1}},
        {"type": "video_url", "video_url": [url(f) for f in frames(3, 20)], "fps": 1},
    ]
    first = ask(sees, forms[0], words("Which?"))
    for form in forms[1:]:
        a = ask(sees, form, words("Which?"))
        assert a["timings"]["prompt_n"] == 0 and a["choices"][0]["message"] == first["choices"][0]["message"]


def test_frames_may_be_named_where_images_may(tmp_path):
    s = Server(*FLAGS, "--image-dir", str(tmp_path), model=make_model(tmp_path, "qwen2vl"))
    try:
        for k, f in enumerate(frames(3)):
            (tmp_path / f"{k}.png").write_bytes(f)
        named = [f"file://{tmp_path}/{k}.png" for k in range(3)]
        first = ask(s, video(3), words("?"))
        for form in (named, [{"type": "image_url", "image_url": {"url": u}} for u in named]):
            assert ask(s, {"type": "video", "video": form}, words("?"))["timings"]["prompt_n"] == 0
        assert first["timings"]["prompt_n"] > 0
        said = refused(s, {"type": "video", "video": [named[0], f"file://{tmp_path}/none.png"]})
        assert said.startswith("messages: messages[0].content[0]: frame 2: ")
    finally:
        assert s.stop() == 0


def test_qwen3_reads_when_a_frame_is(tmp_path):
    """A video is what its pairs of frames are as videos by themselves, each behind its time."""
    s = Server(*FLAGS, model=make_model(tmp_path, "qwen3vl"))
    try:
        size = {"width": 384, "height": 240}  # not made larger, however few they are
        many = [url(f) for f in frames(4, 30, **size)]
        whole = ask(s, {"type": "video", "video": many, "fps": 1}, words("?"))["usage"]["prompt_tokens"]
        pair = ask(s, {"type": "video", "video": many[:2], "fps": 1}, words("?"))["usage"]["prompt_tokens"]
        text = ask(s, words("?"))["usage"]["prompt_tokens"]
        assert whole - text == 2 * (pair - text)
        at_1 = ask(s, words("<2.5 seconds>"))["usage"]["prompt_tokens"] - ask(s, words(""))["usage"]["prompt_tokens"]
        rows = (384 // 12) * (240 // 12)
        assert pair - text == rows + 2 + at_1
    finally:
        assert s.stop() == 0


def test_what_is_wrong_is_said(sees):
    begin = "messages: messages[0].content[0]: "
    odd = [url(f) for f in [*frames(2), picture(1, width=30, height=30)]]
    for part, said in (
        ({"type": "video", "video": []}, "a video of no frames"),
        ({"type": "video", "video": "data:video/mp4;base64,AAAA"}, "this server opens no video files"),
        ({"type": "video_url", "video_url": {"url": "https://a.b/c.mp4"}}, "this server opens no video files"),
        ({"type": "video"}, "the part has no video"),
        ({"type": "video", "video": odd}, "frame 3: it has 30 x 30 pixels, the first one 40 x 30"),
        ({"type": "video", "video": [url(frames(1)[0]), url(b"GIF89a....")]}, "frame 2: "),
        ({"type": "video", "video": [url(frames(1)[0]), 5]}, "frame 2: an image is wanted"),
        ({"type": "video", "video": [url(frames(1)[0]), "*"]}, "frame 2: no base64"),
        ({"type": "video", "video": ["x"] * 769}, "a video of 769 frames, 768 are allowed"),
        (video(2, fps=0), "fps: a number from 0.01 to 1000"),
        (video(2, fps="2"), "fps: a number from 0.01 to 1000"),
        (video(2, fps=1e300), "fps: a number from 0.01 to 1000"),
    ):
        assert refused(sees, part, words("?")).startswith(begin + said), (part["type"], said)
    big = url(png(4100, 4100, lambda x, y: (0, 0, 0)))
    assert "67 million pixels together" in refused(sees, {"type": "video", "video": [big] * 5})
    assert "more than 64 images" in refused(
        sees, *[{"type": "video", "video": [url(png(8, 8, lambda x, y: (0, 0, 0)))]}] * 65
    )
    assert ask(sees, words("still here"))["choices"]


def test_a_model_of_pictures_takes_no_video(gemma):
    assert "this model takes pictures, no video" in refused(gemma, video(2))


def test_a_user_cannot_write_a_video(sees):
    a = ask(sees, words("<|vision_start|><|video_pad|><|vision_end|> hi"))
    assert "images_n" not in a["timings"] and a["usage"]["prompt_tokens"] < 70


# ---- pan and scan ----


def pixel(x, y):
    return (x * 3 % 256, y * 5 % 256, (x + y) % 256)


def cut(x0, y0, w, h):
    return image(png(w, h, lambda x, y: pixel(x0 + x, y0 + y)))


ON = {"mm_processor_kwargs": {"do_pan_and_scan": True}}
OFF = {"mm_processor_kwargs": {"do_pan_and_scan": False}}


def test_a_long_picture_is_seen_whole_and_in_parts(gemma):
    """As transformers' processor writes it: the prompt is the one in which a client writes all of it itself."""
    whole = cut(0, 0, 601, 300)
    by_hand = ask(
        gemma,
        words("Look: Here is the original image "),
        whole,
        words(" and here are some crops to help you see better "),
        cut(0, 0, 301, 300),
        words(" "),
        cut(301, 0, 300, 300),
        words("Where?"),
    )
    n = by_hand["usage"]["prompt_tokens"]
    a = ask(gemma, words("Look: "), whole, words("Where?"), **ON)
    assert a["usage"]["prompt_tokens"] == a["timings"]["cache_n"] == n and a["timings"]["images_n"] == 3
    assert logprobs(a) == logprobs(by_hand)
    plain = ask(gemma, words("Look: "), whole, words("Where?"))
    assert plain["usage"]["prompt_tokens"] < n - 32 and logprobs(plain) != logprobs(a)
    assert ask(gemma, words("Look: "), whole, words("Where?"), **OFF)["timings"]["prompt_n"] == 0  # as plain
    square = cut(0, 0, 300, 290)
    b = ask(gemma, square, words("Where?"), **ON)
    assert ask(gemma, square, words("Where?"))["timings"]["cache_n"] == b["usage"]["prompt_tokens"]


def test_the_server_says_it_for_all(tmp_path, gemma):
    s = Server(*FLAGS, "--image-pan-and-scan", model=make_model(tmp_path, "gemma3"))
    try:
        tall = cut(0, 0, 300, 601)
        on, off = ask(s, tall, words("?")), ask(s, tall, words("?"), **OFF)
        assert logprobs(on) == logprobs(ask(gemma, tall, words("?"), **ON))
        assert logprobs(off) == logprobs(ask(gemma, tall, words("?")))
    finally:
        assert s.stop() == 0


def test_parts_count_as_images(gemma):
    tall = image(png(300, 601, lambda x, y: (0, 0, 0)))
    assert "more than 64 images" in refused(gemma, *[tall] * 22, **ON)
    assert 'mm_processor_kwargs: "fps" is not known' in refused(gemma, words("?"), mm_processor_kwargs={"fps": 1})
    assert "true or false wanted" in refused(gemma, words("?"), mm_processor_kwargs={"do_pan_and_scan": "yes"})
