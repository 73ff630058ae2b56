"""Models of a hub through the server: looked for, fetched, cancelled; who may; a hub that is slow, lies, or must not be asked."""

import json
import time

import pytest
from hub_rig import MODEL, PATIENCE_S, REPO, Hub, stall, status, swap


@pytest.fixture
def make_hub(make_server, tmp_path):
    made = []

    def make(*flags, **env):
        made.append(Hub(make_server, tmp_path, *flags, **env))
        return made[-1]

    yield make
    for h in made:
        h.hub.close()


@pytest.fixture
def hub(make_hub):
    return make_hub()


def test_a_model_is_found_looked_at_and_fetched(hub):
    hub.hub.add("other/plain", {"config.json": b"{}"})
    found = hub.get("/v1/hub/models?search=tiny")
    assert found["hub"] == hub.hub.url and [m["id"] for m in found["data"]] == [REPO]
    assert found["data"][0]["gguf"] and not found["data"][0]["gated"]
    assert hub.hub.requests("search=tiny")
    assert hub.get("/v1/hub/models?search=a%20%26b%3d+c%c3%a9")["data"] == []
    assert "search=a%20%26b%3D%20c%C3%A9" in hub.hub.seen[-1].path
    seen = hub.get(f"/v1/hub/models/{REPO}")
    assert [(v["label"], v["fits"]) for v in seen["data"]] == [("Q4_K_M", True), ("Q8_0", True)]
    assert sum(v["chosen"] for v in seen["data"]) == 1 and seen["why"]
    code, answer = hub.start(REPO + ":Q4_K_M")
    assert code == 200
    d = hub.until(answer["id"], "done")
    assert (d["model"], d["done"], d["total"]) == (REPO + ":Q4_K_M", len(MODEL), len(MODEL))
    assert hub.blob().read_bytes() == MODEL
    link = next((hub.home / "hf/hub/models--org--tiny-GGUF/snapshots").rglob("*.gguf"))
    assert link.read_bytes() == MODEL and not hub.blob(MODEL + b"8").exists()
    code, answer = hub.start(REPO + ":Q4_K_M")  # again: nothing is fetched
    n = len(hub.hub.requests("/blob/"))
    hub.until(answer["id"], "done")
    assert len(hub.hub.requests("/blob/")) == n


def test_progress_is_told_and_a_cancelled_one_goes_on_later(hub):
    hub.hub.faults["tiny-Q4_K_M.gguf"] = [stall(100000, 60)]
    i = hub.start(REPO + ":Q4_K_M")[1]["id"]
    assert hub.start(REPO + ":Q4_K_M")[1]["id"] == i  # the same one
    later = hub.start(REPO + ":Q8_0")[1]["id"]
    end = time.monotonic() + PATIENCE_S
    while hub.one(i)["done"] < 100000 and time.monotonic() < end:
        time.sleep(0.02)
    d = hub.one(i)
    assert (d["state"], d["file"], d["done"], d["total"]) == ("running", "tiny-Q4_K_M.gguf", 100000, len(MODEL))
    assert hub.one(later)["state"] == "waiting"
    assert hub.server.request("DELETE", f"/v1/downloads/{later}")[0] == 200
    assert hub.one(later)["state"] == "cancelled"
    assert hub.server.request("DELETE", f"/v1/downloads/{i}")[0] == 200
    hub.until(i, "cancelled")
    assert hub.server.request("DELETE", f"/v1/downloads/{i}")[0] == 404
    assert not hub.blob().exists()
    hub.until(hub.start(REPO + ":Q4_K_M")[1]["id"], "done")
    assert hub.blob().read_bytes() == MODEL
    assert hub.hub.requests("/blob/")[-1].headers["range"] == "bytes=100000-"


def test_the_server_ends_while_one_runs(hub):
    hub.hub.faults["tiny-Q4_K_M.gguf"] = [stall(1000, 60)]
    i = hub.start(REPO + ":Q4_K_M")[1]["id"]
    hub.until(i, "running")
    assert hub.server.stop() == 0


@pytest.mark.parametrize(
    "fault, words",
    [
        (status(404), "404"),
        (swap(MODEL[:-1] + b"x"), "another"),
        (swap(MODEL + b"more"), "bytes"),
        (status(401, {"X-Error-Message": "Access to this model is restricted"}), "restricted"),
    ],
)
def test_what_fails_says_why(hub, fault, words):
    hub.hub.faults["tiny-Q4_K_M.gguf"] = [fault] * 9
    d = hub.until(hub.start(REPO + ":Q4_K_M")[1]["id"], "failed", "done")
    assert d["state"] == "failed" and d["text"], d
    assert str(hub.home) not in d["text"] and not hub.blob().exists()
    assert words in d["text"].lower() or fault[0] == "swap", d["text"]


@pytest.mark.parametrize(
    "model",
    ["", "x", "../../etc/passwd", "a/b/c/../d", "org/na me", "http://127.0.0.1:1/x", "org/x:" + "Q" * 99, "a" * 600],
)
def test_names_that_are_none_are_refused(hub, model):
    assert hub.start(model)[0] == 400
    assert hub.get("/v1/downloads")["data"] == []
    assert hub.hub.seen == []


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"model":3}', b'{"model":"a/b\\u0000c"}', b"{", b"null"])
def test_other_bodies_are_refused(hub, body):
    assert hub.server.request("POST", "/v1/downloads", body)[0] == 400


def test_a_hub_that_says_odd_things(hub):
    hub.hub.edit = lambda entries: [
        {"id": "../x"},
        {"id": "a/b/c"},
        {"id": 5},
        7,
        {},
        {"id": "ok/ok", "tags": "gguf", "downloads": -1},
    ]
    assert [m["id"] for m in hub.get("/v1/hub/models?search=x")["data"]] == ["ok/ok"]
    hub.hub.edit = lambda entries: [{"id": f"many/m{i}", "downloads": 1} for i in range(500)]
    assert len(hub.get("/v1/hub/models?search=x")["data"]) <= 30
    hub.hub.faults["api/search"] = [status(500), ("status", (200, {}, b"{}")), ("status", (200, {}, b"[" * 100000))]
    for _ in range(3):
        code, answer = hub.server.get("/v1/hub/models?search=x")
        assert code == 503 and "hub" in answer["error"]["message"], answer
    assert hub.server.get("/v1/hub/models/org/none")[0] == 404
    assert hub.server.get("/v1/hub/models?search=" + "x" * 300)[0] == 400
    assert hub.server.get("/v1/hub/models?search=%ff")[0] == 400
    assert hub.server.get("/v1/hub/models?search=%00")[0] == 400


def test_no_more_than_sixteen_wait(hub):
    hub.hub.faults["tiny-Q4_K_M.gguf"] = [stall(1000, 60)]
    first = hub.start(REPO + ":Q4_K_M")[1]["id"]
    hub.until(first, "running")
    codes = [hub.start(f"org/m{i}")[0] for i in range(20)]
    assert codes == [200] * 15 + [429] * 5
    for d in reversed(hub.get("/v1/downloads")["data"]):  # the one that runs last: else another takes its place
        assert hub.server.request("DELETE", f"/v1/downloads/{d['id']}")[0] == 200
    hub.until(first, "cancelled")
    hub.until(hub.start(REPO + ":Q8_0")[1]["id"], "done")
    assert len(hub.get("/v1/downloads")["data"]) == 16


def test_offline_asks_no_one(make_hub):
    hub = make_hub(HF_HUB_OFFLINE="1")
    for code, answer in (
        hub.start(REPO),
        hub.server.get("/v1/hub/models?search=x"),
        hub.server.get(f"/v1/hub/models/{REPO}"),
    ):
        assert code == 400 and "HF_HUB_OFFLINE" in answer["error"]["message"]
    assert hub.hub.seen == []


def test_the_token_goes_to_the_hub_and_to_no_client(make_hub):
    hub = make_hub(HF_TOKEN="hf_secret")
    hub.hub.token = "hf_secret"
    texts = [json.dumps(hub.get(p)) for p in ("/v1/hub/models?search=tiny", f"/v1/hub/models/{REPO}", "/v1/settings")]
    texts.append(json.dumps(hub.until(hub.start(REPO + ":Q4_K_M")[1]["id"], "done")))
    assert "hf_secret" not in "".join(texts)
    assert all("authorization" not in s.headers for s in hub.hub.seen if s.server == "store")


def test_only_who_runs_the_server(make_hub, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alice-key\n")
    hub = make_hub("--api-key", "own-key", "--api-key-file", str(keys))
    own, alice = ({"Authorization": f"Bearer {k}-key"} for k in ("own", "alice"))
    body = json.dumps({"model": REPO}).encode()
    for method, path, data in (
        ("GET", "/v1/hub/models?search=x", None),
        ("GET", f"/v1/hub/models/{REPO}", None),
        ("GET", "/v1/downloads", None),
        ("POST", "/v1/downloads", body),
        ("DELETE", "/v1/downloads/1", None),
    ):
        assert hub.server.request(method, path, data)[0] == 401
        assert hub.server.request(method, path, data, alice)[0] == 403
        assert hub.server.request(method, path, data, own | {"Origin": "https://evil.example"})[0] == 403
        assert hub.server.request(method, path, data, own | {"Sec-Fetch-Site": "same-site"})[0] == 403
    assert hub.hub.seen == []
    assert hub.server.request("POST", "/v1/downloads", body, own | {"Sec-Fetch-Site": "same-origin"})[0] == 200


def test_a_page_elsewhere_starts_nothing(hub):
    body = json.dumps({"model": REPO}).encode()
    for extra in (
        {"Origin": "https://evil.example"},
        {"Origin": "http://localhost:5173"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Content-Type": "application/json"},
        {"Origin": "https://evil.example", "Content-Type": "text/plain"},
    ):
        assert hub.server.request("POST", "/v1/downloads", body, extra)[0] == 403, extra
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        code = hub.server.request(
            "POST", "/v1/downloads", body, {"Content-Type": kind, "Origin": f"http://127.0.0.1:{hub.server.port}"}
        )[0]
        assert code == 415, kind
    assert hub.get("/v1/downloads")["data"] == [] and hub.hub.seen == []
