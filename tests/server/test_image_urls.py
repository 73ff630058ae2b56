"""Images that a request names instead of sending them: --image-url-hosts and --image-dir (docs/vision.md), against a far side
that means no good. It is at 127.0.0.1, which only entries with private: allow."""

import http.server
import os
import socket
import ssl
import subprocess
import threading
import time

import pytest

from radish_server import Server
from test_images import CHAT, ask, logprobs, user, words
from vision_model import make_model, picture, url

TIMEOUT_S = 3


class Far(http.server.ThreadingHTTPServer):
    """Answers by path; counts requests, and connections that it still has."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked, self.heads, self.open = [], [], 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def port(self):
        return self.server_address[1]

    def at(self, path, host="127.0.0.1"):
        return f"http://{host}:{self.port}{path}"


class Answer(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def head(self, status, length=None, kind="image/png", **more):
        self.send_response(status)
        if kind:
            self.send_header("Content-Type", kind)
        for name, value in more.items():
            self.send_header(name, value)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def do_GET(self):
        self.server.asked.append(self.path)
        self.server.heads.append(dict(self.headers))
        self.server.open += 1
        try:
            getattr(self, "get_" + self.path.split("/")[1])()
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            self.server.open -= 1

    def send(self, data, **more):
        self.head(200, len(data), **more)
        self.wfile.write(data)

    def get_a(self):
        self.send(picture(60))

    def get_untyped(self):
        self.send(picture(60), kind=None)

    def get_html(self):
        self.send(picture(60), kind="text/html; charset=utf-8")

    def get_words(self):
        self.send(b"TOPSECRET of the far side")

    def get_empty(self):
        self.send(b"")

    def get_status(self):
        status = int(self.path.split("/")[2])
        self.head(status, 9, kind="text/html")
        self.wfile.write(b"TOPSECRET")

    def get_to(self):  # /to/302/URL
        _, _, status, where = self.path.split("/", 3)
        self.head(int(status), 9, Location=where)
        self.wfile.write(b"TOPSECRET")

    def get_round(self):  # /round/N
        n = int(self.path.split("/")[2])
        self.head(302, 0, Location=f"/round/{n - 1}" if n > 1 else "/a")

    def get_endless(self):
        self.head(200)
        while True:
            self.wfile.write(bytes(1 << 20))

    def get_large(self):
        self.head(200, 1 << 40)
        while True:
            self.wfile.write(bytes(1 << 20))

    def get_slow(self):
        self.head(200)
        for byte in picture(60) * 1000:
            self.wfile.write(bytes([byte]))
            time.sleep(0.1)

    def get_late(self):
        time.sleep(2)
        self.get_a()

    def get_silent(self):
        self.connection.recv(1)  # until the other side goes

    def get_slowhead(self):
        self.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            self.wfile.write(b"X: y\r\n")
            time.sleep(0.1)

    def get_hugehead(self):
        self.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            self.wfile.write(b"X-Much: " + b"y" * 8000 + b"\r\n")

    def get_short(self):
        self.head(200, len(picture(60)))
        self.wfile.write(picture(60)[:-40])
        self.wfile.flush()
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def get_squeezed(self):
        import gzip

        self.send(gzip.compress(picture(60)), **{"Content-Encoding": "gzip"})

    def get_noise(self):
        self.wfile.write(b"\x00\x01\x02 nothing of HTTP\r\n\r\n")


@pytest.fixture(scope="module")
def far():
    with Far() as f:
        yield f
        f.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("m"), "qwen25vl")


@pytest.fixture(scope="module")
def sees(model, far):
    """private: is for the far side's own port alone; localhost is listed without it."""
    hosts = f"private:127.0.0.1:{far.port},localhost:{far.port}"
    flags = ["--image-url-hosts", hosts, "--image-url-hosts", "*.localhost.example:81"]
    away = {n: "http://127.0.0.1:9" for n in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")}
    s = Server(
        *("--threads", "2", "--kv-tokens", "16384", "--image-url-timeout", str(TIMEOUT_S)),
        *flags,
        model=model,
        env=away,
    )
    yield s
    assert s.stats()["engine"]["accounting_errors"] == 0
    assert s.stop() == 0


def named(where):
    return {"type": "image_url", "image_url": {"url": where}}


def refused(s, where, *says):
    status, e = s.post(CHAT, {"messages": [user(words("x")), user(words("y"), named(where))], "max_tokens": 1})
    text = e["error"]["message"] if status != 200 else e
    assert status == 400 and "messages[1].content[1]: " in text, (where, status, text)
    assert "TOPSECRET" not in text and all(w in text for w in says), (where, text)
    return text


def test_a_named_image_is_the_image(sees, far):
    sent = ask(sees, [user(named(url(picture(60))), words("Which?"))])
    forms = [
        named(far.at("/a")),
        {"type": "image_url", "image_url": far.at("/a")},
        {"type": "input_image", "image_url": far.at("/untyped"), "detail": "high"},
        {"type": "image", "source": {"type": "url", "url": far.at("/a")}},
        named(far.at("/to/302//a")),
        named(far.at("/to/307/" + far.at("/a"))),
        named(far.at("/round/3")),
        named(far.at("/a").replace("http:", "HTTP:")),
    ]
    for form in forms:
        a = ask(sees, [user(form, words("Which?"))])
        assert a["timings"]["prompt_n"] == 0 and logprobs(a) == logprobs(sent), form
    assert not any("Accept-Encoding" in h or "Cookie" in h or "Authorization" in h for h in far.heads)
    m = {"model": "qwen25vl", "max_tokens": 4, "messages": [user({"type": "text", "text": "Which?"}, forms[3])]}
    assert sees.ok("/v1/messages", m)["usage"]["output_tokens"] > 0
    item = {"role": "user", "content": [{"type": "input_image", "image_url": far.at("/a")}]}
    assert sees.ok("/v1/responses", {"input": [item], "max_output_tokens": 16})["usage"]["output_tokens"] > 0


def test_hosts_that_are_not_listed(sees, far):
    asked = len(far.asked)
    port = far.port
    for where in (
        "http://example.org/x.png",
        "https://127.0.0.1/x",
        "http://127.0.0.1/x",
        f"http://127.0.0.2:{port}/a",
        f"http://[::1]:{port}/a",
        f"http://[::ffff:127.0.0.1]:{port}/a",
        f"http://0.0.0.0:{port}/a",
        f"http://127.0.0.1.example.org:{port}/a",
        f"http://LOCALHOST.:{port + 1}/a",
        "http://169.254.169.254/latest/meta-data/",
    ):
        refused(sees, where, "--image-url-hosts")
    for where in (
        f"http://user@127.0.0.1:{port}/a",
        f"http://user:pass@127.0.0.1:{port}/a",
        f"http://127.0.0.1:{port}@example.org/a",
        f"http://@127.0.0.1:{port + 1}/a",
        "http://",
        "http:/a",
        "http:///a",
        "http://127.0.0.1:99999/a",
        f"http://127.0.0.1:{port} /a",
        f"http://127.0.0.1:{port}\r\nHost: x/a",
        f"http://127.0.0.1\\@example.org:{port}/a",
        f"http://127.0.0.1:{port}/a\0b",
        "http://127.0.0.1/" + "a" * 9000,
    ):
        refused(sees, where)
    assert len(far.asked) == asked


def test_a_name_whose_address_is_this_machine(sees, far):
    asked = len(far.asked)
    refused(sees, far.at("/a", "localhost"), "localhost", "this machine")
    refused(sees, far.at("/a", "LocalHost."))
    assert len(far.asked) == asked


def test_redirects_that_lead_elsewhere(sees, far):
    for where, says in (
        ("file:///etc/passwd", "neither http nor https"),
        ("ftp://127.0.0.1/a", "neither http nor https"),
        ("gopher://127.0.0.1:25/a", "neither http nor https"),
        ("http://127.0.0.1:1/a", "--image-url-hosts"),
        ("http://169.254.169.254/latest", "--image-url-hosts"),
        (far.at("/a", "localhost"), "this machine"),
        (far.at("/a", "u:p@127.0.0.1"), "user"),
    ):
        refused(sees, far.at("/to/302/" + where), "behind a redirect", says)
    refused(sees, far.at("/round/4"), "more than 3 times")
    refused(sees, far.at("/round/1000000"), "more than 3 times")


def test_answers_that_are_no_image(sees, far):
    for status in (201, 204, 206, 400, 401, 403, 404, 407, 429, 500, 503):
        refused(sees, far.at(f"/status/{status}"), f"status {status}")
    refused(sees, far.at("/html"), "text/html")
    refused(sees, far.at("/words"))
    refused(sees, far.at("/empty"), "empty")
    refused(sees, far.at("/short"))
    refused(sees, far.at("/squeezed"))  # as it came: nothing is unpacked
    refused(sees, far.at("/noise"))
    refused(sees, far.at("/hugehead"), "headers")


def peak(s):
    status = open(f"/proc/{s.process.pid}/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def test_bytes_and_time_are_bounded(sees, far):
    before = peak(sees)
    refused(sees, far.at("/endless"), "64 MiB")
    refused(sees, far.at("/large"), "64 MiB")
    assert peak(sees) - before < 320 << 20  # a buffer of 64 MiB that grew
    for path in ("/slow", "/silent", "/slowhead"):
        begin = time.monotonic()
        refused(sees, far.at(path), "too long")
        assert time.monotonic() - begin >= TIMEOUT_S - 0.5


def until(what, seconds=30):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_slow_hosts_hold_up_nobody_else_and_a_client_that_leaves_ends_it(sees, far):
    asked = len(far.asked)
    body = {"messages": [user(named(far.at("/silent")))], "max_tokens": 1}
    left = [sees.open_request(CHAT, body) for _ in range(12)]
    until(lambda: len(far.asked) - asked >= 4)
    a = ask(sees, [user(words("Meanwhile?"))])
    b = ask(sees, [user(named(url(picture(61))), words("Sent along?"))])
    assert a["usage"]["completion_tokens"] == b["usage"]["completion_tokens"] == 6
    for c in left:
        c.close()
    sees.wait_idle()
    assert len(far.asked) - asked <= 12
    assert ask(sees, [user(named(far.at("/a")), words("Then?"))])["usage"]["prompt_tokens"] > 8


def test_what_only_looks_or_counts_fetches_nothing(sees, far):
    asked = len(far.asked)
    for path in ("/v1/cache/explain", "/v1/messages/count_tokens"):
        block = {"type": "image", "source": {"type": "url", "url": far.at("/a")}}
        status, e = sees.post(path, {"model": "qwen25vl", "messages": [user(block)]})
        assert status == 400 and "messages[0].content[0]" in e["error"]["message"], e
    assert len(far.asked) == asked


def test_who_leaves_or_stops_waits_for_no_far_side(model, far):
    flags = ["--drain", "1", "--image-url-hosts", f"private:127.0.0.1:{far.port}", "--image-url-timeout", "600"]
    s = Server("--threads", "1", *flags, model=model)
    until(lambda: far.open == 0)
    for leave in (lambda c: c.close(), lambda c: s.stop()):
        c = s.open_request(CHAT, {"messages": [user(named(far.at("/silent")))]})
        until(lambda: far.open == 1)
        leave(c)
        until(lambda: far.open == 0)
        c.close()
    assert s.process.returncode == 0


def test_flags_that_are_none(model):
    for hosts, code in (("*", 2), ("private:*.local", 2), ("http://a", 2)):
        s = Server("--image-url-hosts", hosts, model=model, wait=False)
        assert s.process.wait(60) == code
    s = Server("--image-dir", "/nowhere/at/all", model=model, wait=False)
    assert s.process.wait(60) == 1


# ---- files ----


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    top = tmp_path_factory.mktemp("pictures")
    d = top / "d"
    (d / "sub dir").mkdir(parents=True)
    (d / "a.png").write_bytes(picture(62))
    (d / "sub dir" / "b%.png").write_bytes(picture(62))
    (d / "words.png").write_bytes(b"TOPSECRET")
    (d / "empty.png").write_bytes(b"")
    (top / "secret.png").write_bytes(picture(63))
    (top / "d2").mkdir()
    (top / "d2" / "a.png").write_bytes(picture(63))
    with open(d / "big.png", "wb") as f:
        f.truncate((64 << 20) + 1)
    os.mkfifo(d / "fifo.png")
    (d / "in.png").symlink_to("a.png")
    (d / "out.png").symlink_to(top / "secret.png")
    (d / "up").symlink_to("..")
    (d / "proc").symlink_to("/proc/self")
    return d


@pytest.fixture(scope="module")
def reads(model, pictures):
    s = Server("--threads", "2", "--kv-tokens", "16384", "--image-dir", str(pictures) + "/", model=model)
    yield s
    assert s.stop() == 0


def test_files_below_the_folder(reads, pictures):
    sent = ask(reads, [user(named(url(picture(62))), words("Which?"))])
    for where in (
        f"file://{pictures}/a.png",
        f"file://localhost{pictures}/a.png",
        f"FILE:{pictures}/a.png",
        f"{pictures}/a.png",
        f"{pictures}//a.png",
        f"{pictures}/sub dir/b%.png",
        f"file://{pictures}/sub%20dir/b%25.png",
        f"file://{pictures}/%61%2Epng",
        f"file://{pictures}/in.png",
    ):
        a = ask(reads, [user(named(where), words("Which?"))])
        assert a["timings"]["prompt_n"] == 0 and logprobs(a) == logprobs(sent), where


def test_files_elsewhere(reads, pictures):
    for where in (
        "file:///etc/passwd",
        "/etc/passwd",
        "file:///proc/self/environ",
        f"file://{pictures}",
        f"file://{pictures}/",
        f"file://{pictures}/../secret.png",
        f"file://{pictures}/%2e%2e/secret.png",
        f"file://{pictures}/..%2fsecret.png",
        f"{pictures}/../secret.png",
        f"{pictures}2/a.png",
        f"{pictures}/sub dir/../../secret.png",
        f"{pictures}/out.png",
        f"{pictures}/up/secret.png",
        f"{pictures}/proc/environ",
        f"{pictures}/fifo.png",
        f"{pictures}/sub dir",
        f"{pictures}/big.png",
        f"{pictures}/empty.png",
        f"{pictures}/words.png",
        f"{pictures}/nothing.png",
        f"{pictures}/a.png/x",
        f"file://{pictures}/a.png%00.png",
        f"file://{pictures}/a%.png",
        f"file://{pictures}/a%zz.png",
        f"file://{pictures}/a.png?x",
        f"file://{pictures}/a.png#x",
        f"file://example.org{pictures}/a.png",
        "file:a.png",
        "file:",
        "a.png",
        f"{pictures}/" + "x" * 9000,
        f"{pictures}/a.png\0",
    ):
        text = refused(reads, where)
        assert str(pictures) not in text, text
    refused(reads, "http://127.0.0.1/a.png", "fetches no images")


def test_all_images_of_a_request_have_a_time_together(sees, far):
    """Each is here in time, all of them are not."""
    content = [named(far.at(f"/late/{i}")) for i in range(16)]
    begin = time.monotonic()
    status, e = sees.post(CHAT, {"messages": [user(*content)], "max_tokens": 1})
    took = time.monotonic() - begin
    assert status == 400 and f"not here after {3 * TIMEOUT_S} s together" in e["error"]["message"], e
    assert "messages[0].content[4]" in e["error"]["message"] and 3 * TIMEOUT_S - 0.5 <= took < 16


def test_https(model, tmp_path):
    """A certificate that this machine trusts, or nothing is sent; a redirect to http: is refused."""
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key, "-out", cert]
    subprocess.run(make + name, check=True, capture_output=True)
    with Far() as f:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(cert, key)
        f.socket = tls.wrap_socket(f.socket, server_side=True)
        flags = ["--threads", "2", "--kv-tokens", "4096", "--image-url-hosts", f"private:127.0.0.1:{f.port}"]

        def https(path):
            return f.at(path).replace("http:", "https:", 1)

        strange = Server(*flags, model=model)
        refused(strange, https("/a"))
        assert f.asked == [] and strange.stop() == 0
        trusting = Server(*flags, model=model, env={"SSL_CERT_FILE": str(cert), "CURL_CA_BUNDLE": ""})
        sent = ask(trusting, [user(named(url(picture(60))), words("Which?"))])
        for path in ("/a", "/to/302//a", "/round/3"):
            assert logprobs(ask(trusting, [user(named(https(path)), words("Which?"))])) == logprobs(sent)
        refused(trusting, https("/to/302/" + f.at("/a")), "redirect")
        for status in (429, 503):
            refused(trusting, https(f"/status/{status}"), f"status {status}")
        assert trusting.stop() == 0
        f.shutdown()
