"""GET, POST /v1/settings: what the next load of a model takes, checked by the rows of --help; who may, and when."""

import json

import pytest
from radish_server import TINY, words

SETTINGS = "/v1/settings"
TEXT = "/v1/completions"


def by_name(answer):
    return {one["name"]: one for one in answer["settings"]}


def reload(s, **settings):
    status, answer = s.post(SETTINGS, {"settings": settings, "reload": True})
    assert status == 200, answer
    s.wait_until(lambda: not s.get(SETTINGS)[1]["reloading"])
    return by_name(s.get(SETTINGS)[1])


@pytest.fixture
def one(make_server):
    return make_server("--threads", "1", "--kv-tokens", "1024", model=TINY)


def test_they_are_told_with_what_they_take(one):
    status, answer = one.get(SETTINGS)
    assert status == 200 and not answer["reloading"] and answer["failure"] == ""
    known = by_name(answer)
    assert known["kv-tokens"]["now"] == known["kv-tokens"]["next"] == known["kv-tokens"]["start"] == "1024"
    assert known["ctx"]["now"] == "" and known["ctx"]["kind"] == "number" and known["ctx"]["help"]
    assert known["thinking"]["choices"] == ["on", "off"] and "q8_0" in known["kv-type"]["known"]
    assert known["kv-bytes"]["kind"] == "bytes"
    fixed = {one["flag"] for one in answer["needs_restart"]}
    assert {"--host", "--port", "--api-key", "--device"} <= fixed and "--ctx" not in fixed


def test_a_load_takes_them_and_the_conversation_goes_on(one):
    one.ok(TEXT, {"prompt": "hello", "max_tokens": 4})
    assert one.post(SETTINGS, {"settings": {"ctx": 128, "kv-type": "bf16"}})[0] == 200
    known = by_name(one.get(SETTINGS)[1])
    assert known["ctx"]["next"] == "128" and known["ctx"]["now"] == ""  # nothing was loaded yet
    assert one.get("/v1/models")[1]["data"][0]["max_model_len"] == 256
    known = reload(one, **{"max-running": 3})
    assert (known["ctx"]["now"], known["kv-type"]["now"], known["max-running"]["now"]) == ("128", "bf16", "3")
    model = one.get("/v1/models")[1]["data"][0]
    assert model["max_model_len"] == 128 and model["status"]["value"] == "loaded"
    one.ok(TEXT, {"prompt": "hello", "max_tokens": 4})
    assert one.post(TEXT, {"prompt": list(range(3, 90)) * 2, "max_tokens": 4})[0] == 400
    # null: as it was at the start; "": the program's default
    known = reload(one, **{"ctx": None, "kv-type": "", "kv-tokens": ""})
    assert (known["ctx"]["now"], known["kv-tokens"]["now"]) == ("", "")
    assert one.get("/v1/models")[1]["data"][0]["max_model_len"] == 256
    assert one.stats()["engine"]["accounting_errors"] == 0


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("ctx", "many", "whole number"),
        ("ctx", -5, "whole number"),
        ("ctx", 10**12, "whole number"),
        ("kv-type", "q9", "f16|bf16"),
        ("kv-type", "q8_0/", "f16|bf16"),
        ("kv-bytes", "8X", "size in bytes"),
        ("thinking", "maybe", "one of on|off"),
        ("thinking", True, "a string, a whole number or null"),
        ("max-running", "1e3", "whole number"),
        ("kv-type", "f" * 500, "f16|bf16"),
        ("kv-type", "f16\0", "a string"),
        ("port", 80, "takes a restart"),
        ("api-key", "mine", "takes a restart"),
        ("no-such", 1, "no such setting"),
    ],
)
def test_what_cannot_be_is_refused_whole(server, name, value, words):
    before = server.get(SETTINGS)[1]
    status, answer = server.post(SETTINGS, {"settings": {"max-queue": 77, name: value}})
    assert status == 400 and words in answer["error"]["message"], answer
    assert answer["error"]["param"] == name
    assert server.get(SETTINGS)[1] == before


@pytest.mark.parametrize("body", [b"[]", b"3", b'{"settings":[]}', b'{"settings":"ctx"}', b'{"reload":1}', b"{", b""])
def test_other_bodies_are_refused(server, body):
    status, _, answer = server.request("POST", SETTINGS, body)
    assert status == 400, answer


def test_settings_that_no_load_can_have_are_given_up(one):
    known = reload(one, **{"kv-type": "q8_0"})  # heads of this model are too short for its blocks
    assert known["kv-type"]["now"] == known["kv-type"]["next"] == "f16"
    assert "q8_0" in one.get(SETTINGS)[1]["failure"]
    one.ok(TEXT, {"prompt": "still here", "max_tokens": 4})
    reload(one, ctx=64)
    assert one.get(SETTINGS)[1]["failure"] == ""


def test_requests_that_run_end_first_and_those_that_come_wait(small):
    held = small.open_request(TEXT, {"prompt": words(20), "max_tokens": 100, "ignore_eos": True})
    small.wait_until(lambda: small.stats()["requests"]["decode"] == 1)
    assert small.post(SETTINGS, {"reload": True})[0] == 200
    waiting = small.open_request(TEXT, {"prompt": "and then", "max_tokens": 4})
    for s in (held, waiting):
        answer = b""
        while b'"usage"' not in answer:
            part = s.recv(65536)
            assert part, answer
            answer += part
        s.close()
        assert b" 200 OK" in answer.split(b"\r\n")[0]
    assert not small.get(SETTINGS)[1]["reloading"]


def test_thinking_by_default(make_server, tmp_path):
    template = tmp_path / "think.jinja"
    template.write_text(
        "{% for m in messages %}{{ m.content }}{% endfor %}[{{ enable_thinking is defined and enable_thinking }}]"
    )
    s = make_server("--threads", "1", "--kv-tokens", "1024", "--chat-template", str(template), model=TINY)
    ask = {"messages": [{"role": "user", "content": "a"}]}
    rendered = lambda body: s.ok("/apply-template", ask | body)["prompt"]  # noqa: E731
    assert rendered({}).endswith("[False]")
    reload(s, thinking="on")
    assert rendered({}).endswith("[True]")
    assert rendered({"enable_thinking": False}).endswith("[False]")
    assert rendered({"chat_template_kwargs": {"thinking": False}}).endswith("[False]")
    reload(s, thinking="off")
    assert rendered({}).endswith("[False]") and rendered({"reasoning_effort": "high"}).endswith("[True]")


def test_only_who_runs_the_server(tenants):
    s, alice, _, own = tenants
    set_it = json.dumps({"settings": {"ctx": 64}}).encode()
    for method, body in (("GET", None), ("POST", set_it)):
        assert s.request(method, SETTINGS, body)[0] == 401
        assert s.request(method, SETTINGS, body, alice)[0] == 403
        assert s.request(method, SETTINGS, body, own | {"Origin": "https://evil.example"})[0] == 403
        assert s.request(method, SETTINGS, body, own | {"Sec-Fetch-Site": "cross-site"})[0] == 403
    assert s.request("POST", SETTINGS, set_it, own | {"Content-Type": "text/plain"})[0] == 415
    assert by_name(s.get(SETTINGS, own)[1])["ctx"]["next"] == ""
    assert s.request("POST", SETTINGS, set_it, own | {"Origin": f"http://127.0.0.1:{s.port}"})[0] == 200


def test_a_page_elsewhere_cannot_without_a_key(one):
    for origin in ("https://evil.example", "http://localhost:1", "null", "app://obsidian.md", "http://127.0.0.1"):
        status, _, _ = one.request("POST", SETTINGS, b'{"settings":{"ctx":64}}', {"Origin": origin})
        assert status == 403, origin
    assert by_name(one.get(SETTINGS)[1])["ctx"]["next"] == ""
