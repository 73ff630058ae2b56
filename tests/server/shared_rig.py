"""A Redis server as a child process, on a port or a socket, and a connection that speaks its protocol."""

import contextlib
import shutil
import signal
import socket
import subprocess
import time

from radish_server import free_port


class Refused(Exception):
    """An answer that is an error."""


class Redis:
    """folder: of its own. flags: as in redis.conf, "--requirepass", "word"."""

    def __init__(self, folder, *flags, port=None):
        self.port = port or free_port()
        self.folder = folder
        self.flags = flags
        folder.mkdir(exist_ok=True)
        self.start()

    def start(self):
        program = shutil.which("redis-server")
        assert program, "redis-server is missing: tools/install-needs --tests"
        self.process = subprocess.Popen(
            [program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", ""]
            + ["--appendonly", "no", "--daemonize", "no", *self.flags],
            stdout=subprocess.DEVNULL,
        )
        for _ in range(400):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5):
                return
            time.sleep(0.025)
        raise AssertionError("redis-server does not listen")

    def kill(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(30)

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def say(self, *words):
        """One command; the answer: bytes, a number, None, or a list."""
        words = [w if isinstance(w, bytes) else str(w).encode() for w in words]
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as s, s.makefile("rb") as f:
            s.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words))
            return answer(f)

    def pages(self, prefix="radish"):
        return [k for k in self.say("KEYS", prefix + ":*:*")]


def answer(f):
    line = f.readline().rstrip(b"\r\n")
    kind, rest = line[:1], line[1:]
    if kind == b"$":
        if int(rest) < 0:
            return None
        data = f.read(int(rest))
        f.read(2)
        return data
    if kind == b"*":
        return [answer(f) for _ in range(int(rest))]
    if kind == b":":
        return int(rest)
    if kind == b"-":
        raise Refused(rest)
    assert kind == b"+", line
    return rest
