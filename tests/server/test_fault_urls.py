"""F15: no URL of a body is ever followed: each form is refused by its name, and the server opens no socket and no file."""

import json
import socket
import subprocess
import threading

import pytest
from radish_server import ROOT, TINY
from vision_model import make_model, picture, url

HOSTS = [
    "127.0.0.1",
    "localhost",
    "LOCALHOST.",
    "0",
    "0.0.0.0",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "169.254.169.254",
    "[fd00:ec2::254]",
    "metadata.google.internal",
    "10.0.0.1",
    "127.0.0.1.nip.io",
    "example.com@127.0.0.1",
    "127.0.0.1#example.com",
    "127.0.0.1\\@example.com",
    "%31%32%37.0.0.1",
    "①②⑦.0.0.1",
    "localhost%00.example.com",
    "127.0.0.1%2f",
]


def urls(port):
    yield from (f"http://{h}:{port}/a.png" for h in HOSTS)
    yield from (f"https://{h}:{port}/a.png" for h in HOSTS[:8])
    yield from (
        "file:///etc/passwd",
        "file://localhost/etc/passwd",
        "FILE:///etc/passwd",
        "file:/etc/passwd",
        "file:\\\\\\etc\\passwd",
        "/etc/passwd",
        "../../etc/passwd",
        "\\\\127.0.0.1\\share\\a",
        f"//127.0.0.1:{port}/a",
        f"\\/\\/127.0.0.1:{port}/a",
        f"http:\\\\127.0.0.1:{port}\\a",
        f"http:/127.0.0.1:{port}/a",
        f" http://127.0.0.1:{port}/",
        f"\thttp://127.0.0.1:{port}/",
        f"hTTp://127.0.0.1:{port}/",
        f"ftp://127.0.0.1:{port}/a",
        f"gopher://127.0.0.1:{port}/_x",
        f"dict://127.0.0.1:{port}/",
        f"ldap://127.0.0.1:{port}/",
        f"ws://127.0.0.1:{port}/",
        f"unix:///var/run/docker.sock",
        "jar:http://127.0.0.1!/a",
        f"url:http://127.0.0.1:{port}",
        "data:image/png;base64,iVBORw0KGgo=",
        "data:text/plain,http://127.0.0.1",
        "data:,",
        "blob:x",
        "about:blank",
        "javascript:1",
        "",
        "x",
        "http://",
        "http://[",
        f"http://127.0.0.1:{port}" + "/a" * 4000,
    )


@pytest.fixture(params=["blind", "sees"])
def watched(request, make_server, tmp_path):
    model = TINY if request.param == "blind" else make_model(tmp_path, "qwen25vl")
    library, log = tmp_path / "call_watch.so", tmp_path / "calls"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", library, ROOT / "tests/server/call_watch.c", "-ldl"],
        check=True,
    )
    s = make_server(
        "--threads", "1", "--kv-tokens", "1024", model=model, env={"LD_PRELOAD": str(library), "CALL_WATCH": str(log)}
    )
    s.calls = log
    assert s.post("/v1/completions", {"prompt": [5], "max_tokens": 1})[0] == 200
    if request.param == "sees":
        image = {"type": "image_url", "image_url": {"url": url(picture())}}
        assert s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": [image]}]})[0] == 200
    return s


def bodies(url):
    def user(part):
        return [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, part]}]

    yield "/v1/chat/completions", {"messages": user({"type": "image_url", "image_url": {"url": url}})}
    yield "/v1/chat/completions", {"messages": user({"type": "image_url", "image_url": url})}
    yield "/v1/chat/completions", {"messages": user({"type": "video_url", "video_url": {"url": url}})}
    yield "/v1/responses", {"input": user({"type": "input_image", "image_url": url})}
    yield "/v1/responses", {"input": user({"type": "input_file", "file_url": url})}
    yield "/v1/messages", {"max_tokens": 1, "messages": user({"type": "image", "source": {"type": "url", "url": url}})}
    yield (
        "/v1/messages",
        {"max_tokens": 1, "messages": user({"type": "document", "source": {"type": "url", "url": url}})},
    )
    yield "/api/chat", {"messages": [{"role": "user", "content": "x", "images": [url]}]}
    yield "/api/generate", {"prompt": "x", "images": [url]}


def test_F15_no_url_is_followed(watched):
    visits, n_before = [], len(watched.calls.read_text())
    assert n_before > 0  # loading a model opens files
    with socket.create_server(("127.0.0.1", 0)) as trap:

        def wait():
            while True:
                try:
                    visits.append(trap.accept())
                except OSError:
                    return

        threading.Thread(target=wait, daemon=True).start()
        table = list(dict.fromkeys(urls(trap.getsockname()[1])))
        assert len(table) >= 60
        for u in table:
            for path, body in bodies(u):
                status, answer = watched.post(path, body)
                text = json.dumps(answer)
                assert status == 400 and ("support" in text or "images" in text or "messages[" in text), (
                    u,
                    path,
                    status,
                    text,
                )
        trap.shutdown(socket.SHUT_RDWR)
    assert not visits
    calls = watched.calls.read_text()[n_before:].splitlines()
    assert not [x for x in calls if not x.split(" ", 1)[-1].startswith("/proc/")], calls


def test_the_watch_sees_what_it_looks_for(tmp_path):
    """The test above could pass because nothing is recorded: a program that does all of it is."""
    library, log = tmp_path / "call_watch.so", tmp_path / "calls"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", library, ROOT / "tests/server/call_watch.c", "-ldl"],
        check=True,
    )
    does = (
        "import socket\nopen('/dev/null').close()\n"
        "try:\n    socket.create_connection(('127.0.0.1', 9), 0.2)\nexcept OSError:\n    pass"
    )
    subprocess.run(
        ["/usr/bin/env", "python3", "-c", does],
        check=True,
        env={"PATH": "/usr/bin:/bin", "LD_PRELOAD": str(library), "CALL_WATCH": str(log)},
    )
    seen = log.read_text()
    assert "/dev/null" in seen and "connect" in seen and "getaddrinfo 127.0.0.1" in seen
