"""HTTP itself: methods, versions, keep-alive, smuggling, limits, keys, hosts, origins, signals."""

import contextlib
import gzip
import json
import re
import shutil
import signal
import socket
import threading
import time

import pytest
from radish_server import ROOT

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASK = json.dumps({"prompt": "hi", "max_tokens": 1}).encode()


def status_of(raw):
    return int(raw.split(b" ", 2)[1]) if raw else 0


def error_of(raw):
    return json.loads(raw.split(b"\r\n\r\n", 1)[1])["error"]


def test_unknown_path_and_method(server):
    assert server.get("/nothing")[0] == 404
    assert server.get("//health")[0] == 404
    status, headers, _ = server.request("GET", CHAT)
    assert status == 405 and "POST" in headers["allow"]
    for method in ("PUT", "DELETE", "TRACE", "PATCH"):
        assert server.request(method, "/health")[0] == 405


def test_a_405_names_the_methods_that_the_path_takes(server):
    for path, methods in (
        ("/api/delete", "DELETE"),
        ("/v1/monitor/requests/x", "DELETE"),
        ("/v1/cache", "GET, HEAD, DELETE"),
        ("/v1/drain", "GET, HEAD, POST, DELETE"),
        ("/v1/cache/names", "GET, HEAD, POST"),
        ("/tokenize", "POST"),
        ("/health", "GET, HEAD"),
    ):
        status, headers, body = server.request("PUT", path)
        assert (status, headers["allow"]) == (405, methods + ", OPTIONS"), path
        assert f"this path takes: {methods}, OPTIONS" in body.decode()


def test_landing_page_and_head(server):
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    status, headers, page = server.request("GET", "/", headers=browser)
    assert status == 200 and headers["content-type"].startswith("text/html") and b"/v1/chat/completions" in page
    assert b'name="viewport"' in page  # it can be read on a phone
    table = (ROOT / "docs/api.md").read_text().split("## ")[0]
    rows = [row for row in table.splitlines() if row.startswith("| `") and "`/api/" not in row]
    named = {path for row in rows for path in re.findall(r"`(?:\w+ )?(/[a-z0-9_/]*)`", row)}
    shown = re.findall(r"(GET|POST|DELETE) (/[a-z0-9_/-]*)", re.sub(r"<[^>]*>", "", page.decode()))
    paths = {path for _, path in shown}
    assert len(named) > 10 and named <= {"/", *paths}, named - paths
    assert len(set(shown)) == len(shown)  # /v1/cache twice: GET and DELETE
    status, headers, nothing = server.request("HEAD", "/", headers=browser)
    assert status == 200 and int(headers["content-length"]) == len(page) and nothing == b""


def test_keep_alive_and_pipelining(server):
    with contextlib.closing(server.connect()) as c:
        for _ in range(50):
            c.request("GET", "/health")
            assert c.getresponse().read() == b'{"status":"ok"}'
        local = c.sock.getsockname()
        c.request("POST", TEXT, ASK, {"Content-Type": "application/json"})
        assert c.getresponse().read() and c.sock.getsockname() == local
    mixed = server.post_bytes(TEXT, ASK) * 3 + b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    out = server.raw(mixed)
    assert (
        out.count(b"HTTP/1.1 200 OK") == 4 and out.count(b"text_completion") == 3 and out.endswith(b'{"status":"ok"}')
    )


def test_http_1_0(server):
    out = server.raw(b"GET /health HTTP/1.0\r\n\r\n")
    assert status_of(out) == 200 and b"Connection: close" in out
    stream = json.dumps({"prompt": "hi", "max_tokens": 2, "stream": True}).encode()
    out = server.raw(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(stream) + stream)
    assert status_of(out) == 200 and b"Transfer-Encoding" not in out and out.endswith(b"data: [DONE]\n\n")


def test_expect_100_continue(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
        head, body = server.post_bytes(TEXT, ASK, ["Expect: 100-continue"]).split(b"\r\n\r\n", 1)
        s.sendall(head + b"\r\n\r\n")
        assert s.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        s.sendall(body)
        assert s.recv(65536).startswith(b"HTTP/1.1 200")
    assert status_of(server.raw(server.post_bytes(TEXT, b"", ["Expect: tea", "Connection: close"]))) == 417


def test_chunked_request_byte_by_byte(server):
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    )
    chunks = (
        b"".join(b"%x;ext=1\r\n%b\r\n" % (len(p), p) for p in (ASK[:5], ASK[5:6], ASK[6:])) + b"0\r\nTrailer: x\r\n\r\n"
    )
    assert status_of(server.raw(head + chunks)) == 200
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for b in head + chunks:
            s.send(bytes([b]))
        assert s.recv(65536).startswith(b"HTTP/1.1 200")


def request(*lines, body=b""):
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


H = b"Host: localhost"
POST = b"POST /v1/completions HTTP/1.1"
NEXT = b"GET /stats HTTP/1.1\r\nHost: localhost\r\n\r\n"
SMUGGLING = {
    "CL and TE": request(POST, H, b"Content-Length: 5", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n" + NEXT),
    "two CL": request(POST, H, b"Content-Length: 5", b"Content-Length: 5", body=b"hello" + NEXT),
    "CL list": request(POST, H, b"Content-Length: 5, 5", body=b"hello" + NEXT),
    "CL plus": request(POST, H, b"Content-Length: +5", body=b"hello" + NEXT),
    "CL minus": request(POST, H, b"Content-Length: -5", body=b"hello" + NEXT),
    "CL hex": request(POST, H, b"Content-Length: 0x5", body=b"hello" + NEXT),
    "CL empty": request(POST, H, b"Content-Length:", body=b"hello" + NEXT),
    "CL huge": request(POST, H, b"Content-Length: 99999999999999999999", body=NEXT),
    "TE xchunked": request(POST, H, b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n" + NEXT),
    "TE list": request(POST, H, b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n" + NEXT),
    "TE twice": request(
        POST, H, b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n" + NEXT
    ),
    "TE in 1.0": request(b"POST /v1/completions HTTP/1.0", H, b"Transfer-Encoding: chunked", body=b"0\r\n\r\n" + NEXT),
    "space before colon": request(POST, H, b"Content-Length : 5", body=b"hello" + NEXT),
    "obs-fold": request(POST, H, b"X: a", b" Content-Length: 5", body=b"hello" + NEXT),
    "bare LF": b"GET /health HTTP/1.1\nHost: localhost\n\n" + NEXT,
    "LF in a header": request(b"GET /health HTTP/1.1", H, b"X: a\nContent-Length: 5", body=NEXT),
    "bare CR": request(b"GET /health HTTP/1.1", H, b"X: a\rb", body=NEXT),
    "NUL": request(b"GET /health HTTP/1.1", H, b"X: a\0b", body=NEXT),
    "control character": request(b"GET /health HTTP/1.1", H, b"X: a\x01b", body=NEXT),
    "no colon": request(b"GET /health HTTP/1.1", H, b"Content-Length 5", body=NEXT),
    "empty name": request(b"GET /health HTTP/1.1", H, b": 5", body=NEXT),
    "no host": request(b"GET /health HTTP/1.1", body=NEXT),
    "two hosts": request(b"GET /health HTTP/1.1", H, H, body=NEXT),
    "two spaces": request(b"GET  /health HTTP/1.1", H, body=NEXT),
    "no version": request(b"GET /health", H, body=NEXT),
    "bad version": request(b"GET /health HTTP/1.x", H, body=NEXT),
    "trailer without a colon": request(
        POST, H, b"Transfer-Encoding: chunked", body=b"0\r\nGET / HTTP/1.1\r\n\r\n" + NEXT
    ),
    "trailer that is folded": request(POST, H, b"Transfer-Encoding: chunked", body=b"0\r\nA: b\r\n c\r\n\r\n" + NEXT),
    "relative target": request(b"GET health HTTP/1.1", H, body=NEXT),
    "bad escape": request(b"GET /%zz HTTP/1.1", H, body=NEXT),
    "escaped NUL": request(b"GET /%00 HTTP/1.1", H, body=NEXT),
    "tab in target": request(b"GET /a\tb HTTP/1.1", H, body=NEXT),
} | {
    f"chunk size {size!r}": request(
        POST, H, b"Transfer-Encoding: chunked", body=size + b"\r\nhello\r\n0\r\n\r\n" + NEXT
    )
    for size in (b"-5", b"0x5", b"+5", b" 5", b"5 ", b"", b"5\n", b"g", b"FFFFFFFFF")
}


@pytest.mark.parametrize("name", SMUGGLING)
def test_what_parsers_could_read_differently_is_refused(server, name):
    out = server.raw(SMUGGLING[name])
    assert status_of(out) == 400 and out.count(b"HTTP/1.1 ") == 1, out
    assert error_of(out)["type"] == "invalid_request_error"


def test_head_limits(server):
    get = b"GET /health HTTP/1.1"
    assert status_of(server.raw(request(b"GET /" + b"a" * 9000 + b" HTTP/1.1", H))) == 414
    assert status_of(server.raw(request(get, H, b"X: " + b"a" * 9000))) == 431
    assert status_of(server.raw(request(get, H, *[b"X: a"] * 120))) == 431
    assert status_of(server.raw(request(get, H, *[b"X: " + b"a" * 1000] * 40))) == 431
    assert status_of(server.raw(request(b"GET /health HTTP/2.0", H))) == 505
    assert status_of(server.raw(request(POST, H, b"Connection: close"))) == 411
    assert status_of(server.raw(b"\r\n\r\n" + request(get, H, b"Connection: close"))) == 200


def test_absolute_form_and_escapes_are_one_target(server):
    assert status_of(server.raw(request(b"GET http://localhost/health HTTP/1.1", H, b"Connection: close"))) == 200
    assert status_of(server.raw(request(b"GET http://evil.example/health HTTP/1.1", H, b"Connection: close"))) == 403
    assert status_of(server.raw(request(b"GET /v1/models/%73mollm2?x=1 HTTP/1.1", H, b"Connection: close"))) == 200


def test_host_and_origin(server):
    assert server.get("/health", {"Host": "evil.example"})[0] == 403
    assert server.get("/health", {"Host": "localhost.evil.example"})[0] == 403
    assert server.get("/health", {"Host": "[::1]:8000"})[0] == 200
    assert server.post(TEXT, ASK, {"Origin": "https://evil.example"})[0] == 403
    assert server.post(TEXT, ASK, {"Origin": "null"})[0] == 403
    status, headers, _ = server.request("POST", TEXT, ASK, {"Origin": "http://localhost:3000"})
    assert (
        status == 200
        and headers["access-control-allow-origin"] == "http://localhost:3000"
        and headers["vary"] == "Origin"
    )


def test_preflight(server):
    ask = {
        "Origin": "http://127.0.0.1:3000",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type",
    }
    status, headers, _ = server.request("OPTIONS", CHAT, headers=ask)
    assert status == 204 and headers["access-control-allow-origin"] == ask["Origin"]
    assert (
        "POST" in headers["access-control-allow-methods"] and "Content-Type" in headers["access-control-allow-headers"]
    )
    assert server.request("OPTIONS", CHAT, headers=ask | {"Origin": "https://evil.example"})[0] == 403


def test_pages_of_this_machine_send_the_headers_of_their_library(server):
    names = (
        "anthropic-dangerous-direct-browser-access,anthropic-version,content-type,x-api-key,x-stainless-helper-method"
    )
    ask = {
        "Origin": "http://localhost:5173",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": names,
    }
    for path in ("/v1/messages", "/api/chat"):
        status, headers, _ = server.request("OPTIONS", path, headers=ask)
        allowed = {h.strip().lower() for h in headers["access-control-allow-headers"].split(",")}
        assert status == 204 and set(names.split(",")) <= allowed
    odd = server.request("OPTIONS", CHAT, headers=ask | {"Access-Control-Request-Headers": 'a; b="c"'})[1]
    assert "b=" not in odd["access-control-allow-headers"]
    headers = server.request("POST", TEXT, ASK, {"Origin": ask["Origin"]})[1]
    assert "X-Request-Id" in headers["access-control-expose-headers"]


@pytest.mark.parametrize(
    "origin", ["app://obsidian.md", "tauri://localhost", "vscode-webview://0ab1", "http://0.0.0.0:3000"]
)
def test_programs_whose_windows_are_pages_are_of_this_machine(server, origin):
    status, headers, _ = server.request("POST", TEXT, ASK, {"Origin": origin})
    assert status == 200 and headers["access-control-allow-origin"] == origin


@pytest.mark.parametrize("base", ["", "/v1", "/v1/v1"])
def test_base_urls_with_and_without_v1(server, base):
    assert server.get(base + "/models")[1]["data"][0]["id"] == "smollm2"
    assert server.get(base + "/models/smollm2/")[1]["id"] == "smollm2"
    assert server.get(base + "/health/")[0] == 200
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    assert server.ok(base + "/chat/completions", chat)["object"] == "chat.completion"
    assert server.ok(base + "/chat/completions/", chat)["object"] == "chat.completion"
    assert server.ok(base + "/completions", ASK)["object"] == "text_completion"
    r = server.ok(base + "/responses", {"input": "Hi", "max_output_tokens": 1})
    assert server.get(f"{base}/responses/{r['id']}")[1]["id"] == r["id"]
    assert server.request("DELETE", f"{base}/responses/{r['id']}/")[0] == 200
    assert server.get(f"{base}/responses/{r['id']}")[0] == 404


def test_a_server_that_is_reached_as_0_0_0_0(server):
    assert server.get("/v1/models", {"Host": f"0.0.0.0:{server.port}"})[0] == 200
    assert server.get("/v1/models", {"Host": "0.0.0.0.evil.example"})[0] == 403


def test_content_type(server):
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for headers in (
        {"Content-Type": "text/plain"},
        {"Content-Type": "multipart/form-data"},
        form | {"Origin": "http://127.0.0.1:3000"},
        form | {"Sec-Fetch-Site": "cross-site"},
    ):
        status, answer = server.post(TEXT, ASK, headers)
        assert status == 415 and "application/json" in answer["error"]["message"]
    status, answer = server.post(TEXT, gzip.compress(ASK), {"Content-Encoding": "gzip"})
    assert status == 415 and "compressed" in answer["error"]["message"]
    assert server.post(TEXT, ASK, {"Content-Encoding": "identity"})[0] == 200
    assert server.post(TEXT, ASK, form)[0] == 200  # curl -d without -H
    assert server.post(TEXT, ASK, {"Content-Type": "application/json; charset=utf-8"})[0] == 200


def test_api_key(make_server):
    s = make_server("--api-key", "s3cret", "--kv-tokens", "4096")
    routes = [
        "/v1/models",
        "/v1/models/smollm2",
        "/stats",
        "/nothing",
        "//stats",
        "/stats/",
        "/%73tats",
        "/v1/models/x%2fy",
        "/STATS",
    ]
    for path in routes:
        for headers in (
            {},
            {"Authorization": "Bearer s3cre"},
            {"Authorization": "Bearer s3crets"},
            {"Authorization": "Bearer "},
            {"x-api-key": "S3cret"},
            {"Authorization": "Basic s3cret"},
        ):
            assert s.get(path, headers)[0] == 401, (path, headers)
    status, headers, _ = s.request("POST", CHAT, b"x" * 1000)
    assert status == 401 and headers["www-authenticate"] == "Bearer"
    assert s.get("/health")[0] == 200
    for headers in ({"Authorization": "Bearer s3cret"}, {"x-api-key": "s3cret"}):
        assert s.get("/stats", headers)[0] == 200
        assert s.post(TEXT, ASK, headers)[0] == 200
    foreign = {"x-api-key": "s3cret", "Origin": "https://app.example"}
    status, headers, _ = s.request("POST", TEXT, ASK, foreign)
    assert status == 200 and headers["access-control-allow-origin"] == foreign["Origin"]
    assert "access-control-allow-credentials" not in headers  # the key is all that lets a page in
    status, headers, _ = s.request(
        "OPTIONS", CHAT, headers={"Origin": foreign["Origin"], "Access-Control-Request-Headers": "authorization"}
    )
    assert status == 204 and headers["access-control-allow-origin"] == foreign["Origin"]
    status, headers, _ = s.request("GET", "/v1/models", headers={"Origin": foreign["Origin"]})
    assert status == 401 and headers["access-control-allow-origin"] == foreign["Origin"]  # it can say what is wrong
    proxied = {"Host": "llm.example.com"}  # as Caddy and others pass it on
    assert s.get("/v1/models", proxied)[0] == 401 and s.get("/v1/models", proxied | {"x-api-key": "s3cret"})[0] == 200


def test_tenants_never_share_the_cache(make_server, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# two tenants\nalice-key\n\n  bob-key \n")
    s = make_server("--api-key-file", str(keys), "--kv-tokens", "4096")
    ask = {"prompt": "A tenant's own long prompt, about nothing in particular.", "max_tokens": 1}

    def cached(key, **extra):
        status, answer = s.post(TEXT, ask | extra, {"Authorization": f"Bearer {key}"})
        assert status == 200
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert s.post(TEXT, ask)[0] == 401 and s.get("/v1/models", {"x-api-key": "# two tenants"})[0] == 401
    for _ in range(2):
        assert [cached(k) > 0 for k in ("alice-key", "bob-key")] == [_ > 0] * 2
    assert cached("alice-key", cache_salt="x") == 0 and cached("alice-key", cache_salt="x") > 0
    assert cached("bob-key", cache_salt="x") == 0

    alice, bob = ({"Authorization": f"Bearer {k}"} for k in ("alice-key", "bob-key"))
    rid = s.post("/v1/responses", {"input": "Mine.", "max_output_tokens": 1}, alice)[1]["id"]
    own = {"input": "And now?", "previous_response_id": rid, "max_output_tokens": 1}
    assert [s.get(f"/v1/responses/{rid}", who)[0] for who in (alice, bob)] == [200, 404]
    assert [s.post("/v1/responses", own, who)[0] for who in (alice, bob)] == [200, 404]
    assert s.request("DELETE", f"/v1/responses/{rid}", headers=bob)[0] == 404


def test_cache_salt(server):
    ask = {"prompt": "Salted prompts share with their like alone.", "max_tokens": 1}
    seen = [
        server.ok(TEXT, ask | extra)["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        for extra in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}, {}, {"cache_salt": "a"}, {"cache_salt": "b"})
    ]
    assert seen == [False, False, False, True, True, True]


def test_slow_head_is_cut_and_others_go_on(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
        s.sendall(b"GET /health HT")
        start = time.monotonic()
        assert server.get("/health")[0] == 200
        assert status_of(s.recv(1000)) == 408
        assert time.monotonic() - start > 5


def test_sigterm_idle_and_busy(make_server):
    idle, busy = make_server("--kv-tokens", "4096"), make_server("--kv-tokens", "4096", "--drain", "1")
    start = time.monotonic()
    assert idle.stop() == 0 and time.monotonic() - start < 20
    ask = {"prompt": "Once upon a time", "max_tokens": 3000, "ignore_eos": True}
    stream, whole = busy.open_request(TEXT, ask | {"stream": True}), busy.open_request(TEXT, ask)
    busy.wait_until(lambda: busy.stats()["requests"]["decode"] == 2)
    busy.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    with contextlib.suppress(OSError):
        assert busy.get("/health")[0] == 503
    read = []
    threads = [threading.Thread(target=lambda s=s: read.append(s.makefile("rb").read())) for s in (stream, whole)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    assert busy.process.wait(30) == 0
    streamed = next(r for r in read if b"text/event-stream" in r)
    plain = next(r for r in read if b"text/event-stream" not in r)
    assert b'data: {"error":' in streamed and status_of(plain) == 503


def test_SIGHUP_by_hand_ends_nothing_and_nohup_is_obeyed(make_server):
    # whatever started the tests: they themselves may run under nohup; test_keys_server.py closes a terminal
    plain = make_server("--kv-tokens", "4096", before=(shutil.which("env"), "--default-signal=HUP"))
    left = make_server("--kv-tokens", "4096", before=(shutil.which("nohup"),))
    asked = plain.open_request(TEXT, {"prompt": "Once", "max_tokens": 60, "ignore_eos": True})
    plain.wait_until(lambda: plain.stats()["requests"]["decode"] == 1)
    for s in plain, plain, left:
        s.process.send_signal(signal.SIGHUP)
    assert status_of(asked.recv(65536)) == 200
    for s in plain, left:
        assert s.get("/health")[0] == 200 and s.stop() == 0


def test_second_signal_ends_at_once(make_server):
    s = make_server("--kv-tokens", "4096")
    held = s.open_request(TEXT, {"prompt": "Once", "max_tokens": 3000, "ignore_eos": True})
    s.wait_until(lambda: s.stats()["requests"]["decode"] == 1)
    s.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert s.process.poll() is None
    s.process.send_signal(signal.SIGINT)
    assert s.process.wait(5) != 0
    held.close()
