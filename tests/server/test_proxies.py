"""deploy/nginx.conf and deploy/haproxy.cfg: the openai package streams through TLS, with the real proxies."""

import contextlib
import os
import re
import socket
import ssl
import subprocess
import time

import httpx
import openai
import pytest
from radish_server import ROOT, Server, free_port

KEY = "a-key"
ENV = os.environ | {"PATH": os.environ["PATH"] + ":/usr/sbin"}


@pytest.fixture(scope="module")
def radish(tmp_path_factory):
    path = tmp_path_factory.mktemp("radish") / "s"
    s = Server(
        "--threads", "2", "--kv-tokens", "16384", "--listen", f"unix:{path}", env={"RADISH_API_KEY": KEY}, wait=False
    )
    s.path = path
    s.wait_ready()
    yield s
    assert s.stop() == 0


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A throwaway one, and its key: (certificate, key, both)."""
    folder = tmp_path_factory.mktemp("tls")
    crt, key = folder / "radish.crt", folder / "radish.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
        + ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", crt],
        check=True,
        capture_output=True,
    )
    (folder / "both.pem").write_text(crt.read_text() + key.read_text())
    return crt, key, folder / "both.pem"


def put(text, changes):
    """Each line of the file as it is installed, with what a machine has of its own."""
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def start_nginx(radish, certificate, folder, port):
    site = put(
        (ROOT / "deploy/nginx.conf").read_text(),
        {
            "server 127.0.0.1:8000;": f"server unix:{radish.path};",
            "listen 443 ssl http2;": f"listen 127.0.0.1:{port} ssl http2;",
            "listen [::]:443 ssl http2;": "",
            "/etc/ssl/radish.crt": str(certificate[0]),
            "/etc/ssl/private/radish.key": str(certificate[1]),
        },
    )
    (folder / "site").write_text(site)
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"{'user root;' if os.geteuid() == 0 else ''}\ndaemon off;\npid {folder}/pid;\nerror_log {folder}/error.log;\nworker_processes 1;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{paths}include {folder}/site;\n}}\n"
    )
    return ["nginx", "-c", folder / "nginx.conf", "-p", folder]


def start_haproxy(radish, certificate, folder, port):
    text = put(
        (ROOT / "deploy/haproxy.cfg").read_text(),
        {
            "bind :443": f"bind 127.0.0.1:{port}",
            "/etc/haproxy/radish.pem": str(certificate[2]),
            "127.0.0.1:8000": f"127.0.0.1:{radish.port}",
        },
    )
    (folder / "haproxy.cfg").write_text("global\n    maxconn 1000\n\n" + text)
    return ["haproxy", "-db", "-f", folder / "haproxy.cfg"]


@pytest.fixture(scope="module", params=[start_nginx, start_haproxy], ids=["nginx", "haproxy"])
def proxy(request, radish, certificate, tmp_path_factory):
    """Its port, once it leads to radish; nothing that it said is an error."""
    folder, port = tmp_path_factory.mktemp("proxy"), free_port()
    with open(folder / "said", "wb") as said:
        process = subprocess.Popen(
            request.param(radish, certificate, folder, port),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env=ENV,
        )
    try:
        for _ in range(400):
            assert process.poll() is None, (folder / "said").read_text()
            with contextlib.suppress(httpx.HTTPError):
                if client(port, certificate).get("/health").status_code == 200:
                    break
            time.sleep(0.05)
        else:
            raise AssertionError((folder / "said").read_text())
        yield port
    finally:
        process.terminate()
        process.wait(20)
    assert not re.search(r"\[(warn|error|crit|alert|emerg)|WARNING|ALERT", (folder / "said").read_text())


def client(port, certificate):
    return httpx.Client(
        base_url=f"https://localhost:{port}", verify=ssl.create_default_context(cafile=str(certificate[0])), timeout=120
    )


@pytest.fixture
def api(proxy, certificate):
    with client(proxy, certificate) as http:
        yield openai.OpenAI(base_url=f"https://localhost:{proxy}/v1", api_key=KEY, http_client=http, max_retries=0)


def ask(api, **more):
    return api.chat.completions.create(
        model="smollm2", messages=[{"role": "user", "content": "Tell a story."}], temperature=0, **more
    )


def test_a_stream_comes_through_whole(api):
    whole = ask(api, max_tokens=30).choices[0].message.content
    chunks = list(ask(api, max_tokens=30, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole
    assert len(chunks) > 20 and chunks[-1].usage.completion_tokens == 30


def test_tokens_come_while_it_computes_and_a_client_that_leaves_is_seen(api, radish):
    headers = {"Authorization": f"Bearer {KEY}"}

    def running():
        r = radish.get("/stats", headers)[1]["requests"]
        return sum(r[k] for k in ("preparing", "queued", "waiting", "prefill", "decode"))

    def are_over():
        end = time.monotonic() + 60
        while running() and time.monotonic() < end:
            time.sleep(0.05)
        return running() == 0

    assert are_over()  # those of the tests before, whose last bytes a proxy may still hold
    stream = ask(api, max_tokens=6000, stream=True, extra_body={"ignore_eos": True})
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            break
    assert running()  # the first token is here, and thousands are not computed; it may be counted twice for a moment
    stream.close()
    api._client.close()
    assert are_over()


def test_keys_ids_errors_and_large_bodies_pass(proxy, certificate):
    with client(proxy, certificate) as c:
        r = c.get("/v1/models")
        assert r.status_code == 401 and r.json()["error"]["code"] == "invalid_api_key"
        headers = {"Authorization": f"Bearer {KEY}", "X-Request-Id": "through-a-proxy"}
        r = c.post("/tokenize", json={"content": "word " * 600000}, headers=headers)  # 3 MB
        assert r.status_code == 200 and r.headers["x-request-id"] == "through-a-proxy"
        assert (
            c.post("/v1/completions", content=b"{", headers={**headers, "Content-Type": "application/json"}).status_code
            == 400
        )


def test_plain_http_is_not_taken_for_tls(proxy):
    with socket.create_connection(("127.0.0.1", proxy), timeout=20) as s:
        s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b'"ok"' not in s.recv(4096)
