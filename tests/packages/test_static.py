"""The preset "static": what it is linked with, how large it is, and that it runs where there is nothing but glibc.

Building it takes minutes: with RADISH_LONG=1, or where build/static is built already.
"""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from hub_server import HubServer
from throwaway import SUDO, run

GLIBC = ["/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6", "/lib/x86_64-linux-gnu/libm.so.6"]
QUESTION = ["What is the capital of Japan?", "--temperature", "0", "--max-tokens", "12"]
pytestmark = pytest.mark.skipif(
    not (os.environ.get("RADISH_LONG") or Path(__file__).resolve().parents[2].joinpath("build/static/radish").exists()),
    reason="builds for minutes",
)


@pytest.fixture(scope="module")
def program(root):
    run(["cmake", "--preset", "static"], cwd=root)
    run(["cmake", "--build", "--preset", "static"], cwd=root)
    return root / "build/static/radish"


@pytest.fixture
def cell(program, model, tmp_path):
    """A root with the program, the model and the three files of glibc. Returns the words that lead into it."""
    for file in GLIBC:
        place = tmp_path / file[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(file), place)
    shutil.copy(program, tmp_path / "radish")
    shutil.copy(model, tmp_path / "model.gguf")
    return [*SUDO, "chroot", tmp_path]


def test_glibc_alone_stays_and_it_is_small(program):
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", run(["readelf", "-d", program]))
    assert sorted(needed) == ["ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6"]
    assert ".symtab" not in run(["readelf", "-SW", program])
    size = program.stat().st_size
    print(f"build/static/radish: {size:,} bytes")
    assert size < 6_000_000


def test_it_says_what_another_build_says(cell, build, model):
    env = {"PATH": os.environ["PATH"]}
    assert run([*cell, "/radish", "run", "/model.gguf", *QUESTION], env=env) == run(
        [build / "radish", "run", model, *QUESTION]
    )


def test_it_serves_from_there(cell):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    server = subprocess.Popen(
        [*cell, "/radish", "serve", "/model.gguf", "--port", str(port)], stderr=subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                if urllib.request.urlopen(url + "/health").status == 200:
                    break
            assert server.poll() is None
            time.sleep(0.1)
        body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}).encode()
        headers = {"Content-Type": "application/json"}
        answer = json.load(urllib.request.urlopen(urllib.request.Request(url + "/v1/chat/completions", body, headers)))
        assert answer["usage"]["completion_tokens"] >= 1
    finally:
        server.terminate()
        assert server.wait(60) in (0, -15, 143)


def test_it_pulls_where_there_is_libcurl_and_says_so_where_there_is_none(cell, program, tmp_path):
    hub = HubServer()
    data = b"GGUF\x03\0\0\0" + bytes(range(256)) * 400
    hub.add("org/tiny-GGUF", {"tiny-Q8_0.gguf": data})
    try:
        env = {"HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": hub.url, "no_proxy": "*"}
        pulled = run([program, "pull", "org/tiny-GGUF"], env=env).strip()
        assert Path(pulled).read_bytes() == data
    finally:
        hub.close()
    r = subprocess.run([*cell, "/radish", "pull", "org/x"], capture_output=True, text=True)
    assert r.returncode == 1 and "libcurl.so.4 cannot be used" in r.stderr
