"""systemd, played by the test: it passes sockets (LISTEN_FDS), reads what is notified, sets a watchdog."""

import configparser
import contextlib
import http.client
import os
import re
import signal
import socket
import subprocess
import time

import pytest
from radish_server import BUILD, ROOT, TINY

TEXT = "/v1/completions"
SMALL = ("--threads", "1", "--kv-tokens", "8192")


class Manager:
    """Its notify socket, and a start with sockets as descriptors 3, 4 .."""

    def __init__(self, folder):
        self.path = str(folder / "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.told = []

    def read(self, seconds=0.0):
        self.socket.settimeout(seconds or 0.01)
        with contextlib.suppress(TimeoutError):
            while True:
                self.told.append(self.socket.recv(4096).decode())
        return self.told

    def wait_for(self, what, seconds=60):
        """The first message with such a line."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for message in self.read(0.05):
                if any(re.fullmatch(what, line) for line in message.splitlines()):
                    return message
        raise AssertionError(f"never told {what}: {self.told}")

    def start(self, make_server, *flags, sockets=(), env=None, **options):
        """The shell gives its own process id as LISTEN_PID, and becomes the server."""
        moves = " ".join(f"{3 + i}<&{s.fileno()}" for i, s in enumerate(sockets))
        script = f'[ $# -gt 0 ] && LISTEN_PID=$$ LISTEN_FDS={len(sockets)} exec "$@" {moves}'
        before = ("bash", "-c", script, "bash") if sockets else ()
        return make_server(
            *SMALL,
            *flags,
            before=before,
            port=0 if sockets else None,
            fds=[s.fileno() for s in sockets],
            env={"NOTIFY_SOCKET": self.path} | (env or {}),
            wait=False,
            **{"model": TINY} | options,
        )


@pytest.fixture
def manager(tmp_path):
    return Manager(tmp_path)


def listening(address="127.0.0.1"):
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    s.bind((address, 0))
    s.listen(16)
    return s


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(60)
        self.sock.connect(self.path)


def get_unix(path, target, headers=None):
    with contextlib.closing(UnixConnection(path)) as c:
        c.request("GET", target, headers=headers or {})
        r = c.getresponse()
        return r.status, r.read()


def test_sockets_that_were_passed_are_served_and_a_client_that_came_before_waits(make_server, manager, tmp_path):
    tcp = listening()
    unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    unix.bind(str(tmp_path / "s"))
    unix.listen(16)
    with socket.create_connection(tcp.getsockname(), timeout=60) as early:
        early.sendall(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")  # what starts it under systemd
        s = manager.start(make_server, sockets=(tcp, unix))
        s.port = tcp.getsockname()[1]
        answer = early.recv(4096)
        assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 503")), answer
    manager.wait_for("READY=1")
    assert s.get("/health") == (200, {"status": "ok"})
    assert get_unix(tmp_path / "s", "/v1/models")[0] == 200
    assert s.stop() == 0
    assert (tmp_path / "s").exists()  # it is the manager's
    unix.close()
    tcp.close()


def test_the_manager_hears_of_ready_draining_and_the_model(make_server, manager):
    s = manager.start(make_server)
    ready = manager.wait_for("READY=1")
    assert re.search("^STATUS=serving tiny-llama$", ready, re.M), ready
    assert s.get("/health")[0] == 200  # not told before it is so
    s.process.terminate()
    stopping = manager.wait_for("STOPPING=1")
    assert "STATUS=draining" in stopping
    assert s.process.wait(30) == 0
    assert [m for m in manager.read() if m.startswith("READY")] == [ready]
    assert not any("WATCHDOG" in m for m in manager.told)  # none was asked for


def test_a_model_that_cannot_be_loaded_is_never_ready(make_server, manager, tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + bytes(100))
    s = manager.start(make_server, model=bad)
    assert s.process.wait(30) == 1
    assert not any("READY" in m for m in manager.read(0.1))


def test_what_was_passed_must_listen(make_server, manager, tmp_path):
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    with open(tmp_path / "log", "wb") as log:
        server = manager.start(make_server, sockets=(s,), log=log)
        assert server.process.wait(30) == 1
    assert b"descriptor 3 was passed to listen on" in (tmp_path / "log").read_bytes()
    s.close()


def test_sockets_of_another_process_are_left_alone(make_server, manager):
    """LISTEN_PID is not ours: they were meant for the parent, which forgot to take its variables back."""
    s = make_server(*SMALL, model=TINY, env={"LISTEN_PID": "1", "LISTEN_FDS": "1"})
    assert s.get("/health")[0] == 200


@pytest.fixture(scope="module")
def stall_library(tmp_path_factory):
    library = tmp_path_factory.mktemp("stall") / "stall_thread.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", library, ROOT / "tests/server/stall_thread.c", "-ldl"],
        check=True,
    )
    return library


def stalling(library, file, thread="engine"):
    return {"LD_PRELOAD": str(library), "STALL_FILE": str(file), "STALL_THREAD": thread}


def test_the_watchdog_is_told_of_progress_only(make_server, manager, tmp_path, stall_library):
    stall = tmp_path / "stall"
    s = manager.start(make_server, "--stall", "1", env=stalling(stall_library, stall) | {"WATCHDOG_USEC": "900000"})
    manager.wait_for("READY=1")
    manager.wait_for("WATCHDOG=1")
    n = sum("WATCHDOG" in m for m in manager.read())
    s.wait_until(lambda: sum("WATCHDOG" in m for m in manager.read()) >= n + 3)  # idle is fine

    stall.touch()
    held = s.open_request(TEXT, {"prompt": "abc", "max_tokens": 5})
    manager.wait_for("STATUS=stuck: the engine has not got on for .* s")
    n = sum("WATCHDOG" in m for m in manager.read(0.1))
    status, answer = s.get("/health")
    assert status == 503 and answer["status"] == "unhealthy"
    assert re.fullmatch(r"the engine has not got on for \d+ s", answer["error"]["message"])
    assert sum("WATCHDOG" in m for m in manager.read(1.5)) == n  # systemd would end it by now

    stall.unlink()  # it gets on
    assert held.recv(65536).startswith(b"HTTP/1.1 200")
    s.wait_until(lambda: s.get("/health")[0] == 200)
    s.wait_until(lambda: sum("WATCHDOG" in m for m in manager.read()) > n)
    held.close()
    assert s.stop() == 0


def test_an_engine_that_stands_still_with_nothing_to_do_is_seen(make_server, manager, tmp_path, stall_library):
    stall = tmp_path / "stall"
    s = manager.start(make_server, "--stall", "2", env=stalling(stall_library, stall))
    manager.wait_for("READY=1")
    s.wait_until(lambda: s.get("/health")[0] == 200)
    stall.touch()
    s.wait_until(lambda: s.get("/health")[0] == 503)
    stall.unlink()
    s.wait_until(lambda: s.get("/health")[0] == 200)
    assert s.stop() == 0


def test_F97_a_stuck_engine_does_not_keep_the_server(make_server, manager, tmp_path, stall_library):
    stall = tmp_path / "stall"
    with open(tmp_path / "log", "wb") as log:
        s = manager.start(make_server, "--drain", "1", "--stall", "1", env=stalling(stall_library, stall), log=log)
    manager.wait_for("READY=1")
    stall.touch()
    held = s.open_request(TEXT, {"prompt": "abc", "max_tokens": 5})
    s.wait_until(lambda: s.get("/health")[0] == 503)
    s.process.terminate()
    assert s.process.wait(60) == 70
    assert b"the engine is stuck" in (tmp_path / "log").read_bytes()
    held.close()


def test_F97_a_second_signal_ends_a_server_that_waits_for_its_engine(make_server, manager, tmp_path, stall_library):
    stall = tmp_path / "stall"
    s = manager.start(make_server, "--drain", "1", env=stalling(stall_library, stall))
    manager.wait_for("READY=1")
    stall.touch()
    held = s.open_request(TEXT, {"prompt": "abc", "max_tokens": 5})
    s.process.terminate()
    manager.wait_for("STOPPING=1")
    time.sleep(1.5)  # --drain is over
    s.process.send_signal(signal.SIGTERM)
    assert s.process.wait(10) == 130
    held.close()


def test_a_stuck_io_thread_is_seen_from_the_door(make_server, manager, tmp_path, stall_library):
    stall = tmp_path / "stall"
    s = manager.start(make_server, "--stall", "2", "--io-threads", "2", env=stalling(stall_library, stall, "radish-io"))
    manager.wait_for("READY=1")
    s.wait_until(lambda: s.get("/health")[0] == 200)
    stall.touch()
    s.wait_until(lambda: s.get("/health")[1].get("status") == "unhealthy")
    assert "a thread of the server has been stuck" in s.get("/health")[1]["error"]["message"]
    stall.unlink()
    s.wait_until(lambda: s.get("/health")[0] == 200)
    assert s.stop() == 0


# ---- addresses ----


def test_a_server_listens_on_several_addresses_and_on_paths(make_server, tmp_path):
    path = tmp_path / "radish.sock"
    with open(tmp_path / "log", "wb") as log:
        s = make_server(
            *SMALL,
            "--log-level", "debug", "--listen", f"unix:{path}", "--socket-mode", "660",
            *("--listen", "127.0.0.1:0", "--listen", "127.0.0.2:0"),
            model=TINY, log=log,
        )  # fmt: skip
    assert s.get("/health")[0] == 200  # --port was given, too
    assert get_unix(path, "/health") == (200, b'{"status":"ok"}')
    assert get_unix(path, "/stats")[0] == 200
    assert get_unix(path, "/stats", {"Host": "evil.example"})[0] == 403
    assert path.stat().st_mode & 0o777 == 0o660
    s.wait_until(lambda: f"client unix:uid {os.getuid()}" in (tmp_path / "log").read_text())
    second = make_server(*SMALL, "--listen", f"unix:{path}", model=TINY, wait=False)
    assert second.process.wait(30) == 1  # someone listens
    assert get_unix(path, "/health")[0] == 200
    assert s.stop() == 0
    assert not path.exists()


def test_a_socket_that_a_crash_left_is_replaced_and_other_files_are_not(make_server, tmp_path):
    path = tmp_path / "radish.sock"
    s = make_server(*SMALL, "--listen", f"unix:{path}", model=TINY)
    s.process.kill()
    s.process.wait()
    assert path.exists()
    s = make_server(*SMALL, "--listen", f"unix:{path}", model=TINY)
    assert get_unix(path, "/health")[0] == 200 and s.stop() == 0
    path.write_text("mine")
    s = make_server(*SMALL, "--listen", f"unix:{path}", model=TINY, wait=False)
    assert s.process.wait(30) == 1 and path.read_text() == "mine"


@pytest.mark.parametrize(
    "flags",
    [
        ("--listen", "8000"),
        ("--listen", "localhost"),
        ("--listen", "[::1]"),
        ("--listen", "::1:80"),
        ("--listen", "127.0.0.1:65536"),
        ("--listen", "127.0.0.1:"),
        ("--listen", ":80"),
        ("--listen", "unix:"),
        ("--listen", "unix:" + "a" * 120),
        ("--listen", "example.org:80"),
        ("--socket-mode", "888"),
        ("--socket-mode", "1777"),
        ("--socket-mode", ""),
        ("--listen", "127.0.0.1:0") * 17,
    ],
    ids=lambda f: " ".join(f)[:40],
)
def test_addresses_that_are_none_are_refused(make_server, flags, tmp_path):
    with open(tmp_path / "log", "wb") as log:
        s = make_server(*SMALL, *flags, model=TINY, wait=False, log=log)
        assert s.process.wait(30) in (1, 2)
    assert (tmp_path / "log").read_text().startswith("radish")


# ---- the files ----


def unit(path):
    parser = configparser.RawConfigParser(strict=False, comment_prefixes="#")
    parser.optionxform = str
    parser.read(path)
    return parser


def test_the_units_are_ones_that_systemd_takes(tmp_path):
    """Installed to a folder, so that the program's path is a real one; without the file that it asks for."""
    subprocess.run(["cmake", "--install", BUILD, "--prefix", tmp_path], check=True, capture_output=True)
    units = tmp_path / "lib/systemd/system"
    start = unit(units / "radish.service")["Service"]["ExecStart"].split()
    assert start[0] == str(tmp_path / "bin/radish") and os.access(start[0], os.X_OK)
    flags = subprocess.run([start[0], start[1], "--help"], capture_output=True, text=True, check=True).stdout
    assert all(word in flags for word in start[2:] if word.startswith("--"))
    r = subprocess.run(
        [
            "systemd-analyze",
            "verify",
            "--man=no",
            "--recursive-errors=no",
            units / "radish.service",
            units / "radish.socket",
        ],
        capture_output=True,
        text=True,
    )
    told = [line for line in r.stderr.splitlines() if "radish" in line and "man " not in line and "Command" not in line]
    assert r.returncode == 0 and told == [], r.stderr
