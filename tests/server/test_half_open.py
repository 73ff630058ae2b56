"""F45: a peer that is gone without a word. What the kernel is told about each connection; with --long a link that is cut."""

import contextlib
import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import time

import pytest
from radish_server import TINY

TEXT = "/v1/completions"
CLIENT = """
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
s.sendall(sys.stdin.buffer.read())
while s.recv(65536):
    print("some", flush=True)
"""


def server_side(server, client):
    """A copy of the server's descriptor of that connection."""
    here, there = f":{server.port:04X}", f":{client.getsockname()[1]:04X}"
    with open("/proc/net/tcp") as f:
        inode = next(
            line.split()[9] for line in f if line.split()[1].endswith(here) and line.split()[2].endswith(there)
        )
    folder = f"/proc/{server.process.pid}/fd"
    fd = next(int(n) for n in os.listdir(folder) if os.readlink(f"{folder}/{n}") == f"socket:[{inode}]")
    pidfd = os.pidfd_open(server.process.pid)
    copy = ctypes.CDLL(None, use_errno=True).syscall(438, pidfd, fd, 0)  # pidfd_getfd
    os.close(pidfd)
    if copy < 0:
        pytest.skip(f"descriptors of other processes cannot be looked at here: {os.strerror(ctypes.get_errno())}")
    return socket.socket(fileno=copy)


def test_F45_every_connection_has_the_kernels_timeouts(make_server):
    """30 s for what is not acknowledged; probes after 30 s of silence, 3 of them, 10 s apart: gone within a minute."""
    s = make_server("--threads", "1", "--kv-tokens", "8192", model=TINY)
    with socket.create_connection(("127.0.0.1", s.port), timeout=20) as c:
        c.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert c.recv(65536).startswith(b"HTTP/1.1 200")
        with server_side(s, c) as copy:
            read = lambda level, name: copy.getsockopt(level, name)
            assert read(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30000
            assert read(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert [
                read(socket.IPPROTO_TCP, n) for n in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            ] == [30, 10, 3]


@pytest.mark.skipif(
    not os.environ.get("RADISH_LONG") or os.geteuid() != 0 or not shutil.which("ip"),
    reason="takes a minute, needs root and ip",
)
def test_F45_a_cut_link_cancels_the_request(make_server):
    """The client is in a network of its own, whose link goes down while its stream runs: no FIN, no RST. Cancelled within 65 s."""
    name, link = f"radish{os.getpid()}", f"rd{os.getpid()}"
    ip = lambda *words: subprocess.run(["ip", *words], check=True, capture_output=True)
    try:
        ip("netns", "add", name)
    except subprocess.CalledProcessError as e:
        pytest.skip(f"no network namespaces here: {e.stderr.decode()}")
    try:
        ip("link", "add", link, "type", "veth", "peer", "name", link + "c", "netns", name)
        ip("address", "add", "10.213.77.1/30", "dev", link)
        ip("link", "set", link, "up")
        ip("-n", name, "address", "add", "10.213.77.2/30", "dev", link + "c")
        ip("-n", name, "link", "set", link + "c", "up")
        s = make_server("--host", "0.0.0.0", "--threads", "1", "--kv-tokens", "16384", "--drain", "1")
        body = json.dumps(
            {"prompt": "Once", "max_tokens": 8000, "ignore_eos": True, "stream": True, "speculation": False}
        ).encode()
        client = subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, "-c", CLIENT, "10.213.77.1", str(s.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        client.stdin.write(s.post_bytes(TEXT, body))
        client.stdin.close()
        assert client.stdout.readline() == b"some\n"
        ip("-n", name, "link", "set", link + "c", "down")
        begun = time.monotonic()
        s.wait_until(lambda: s.stats()["requests"]["cancelled"] == 1, 65)
        print(f"cancelled after {time.monotonic() - begun:.0f} s")
        s.wait_idle()
        client.kill()
        client.wait()
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            ip("link", "del", link)
        ip("netns", "del", name)
