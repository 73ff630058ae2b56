"""Signals, as `radish serve --help` says (F97, F98), and a server that listens to more than its machine (F51)."""

import contextlib
import json
import re
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from radish_server import ROOT, TINY, gone

TEXT = "/v1/completions"


def log_server(make_server, tmp_path, *flags, **options):
    with open(tmp_path / "log", "wb") as log:
        return make_server("--threads", "1", "--kv-tokens", "8192", *flags, log=log, **({"model": TINY} | options))


def test_F98_signals_of_no_use_change_nothing(make_server):
    s = make_server("--threads", "1", "--kv-tokens", "8192", model=TINY)
    asked = s.open_request(TEXT, {"prompt": "a", "max_tokens": 200, "ignore_eos": True, "n": 4})
    for number in (
        signal.SIGUSR2,
        signal.SIGALRM,
        signal.SIGPIPE,
        signal.SIGXFSZ,
        signal.SIGCHLD,
        signal.SIGCONT,
        signal.SIGWINCH,
        signal.SIGURG,
    ):
        for _ in range(2):
            s.process.send_signal(number)
            assert s.get("/health")[0] == 200, number
    assert asked.recv(65536).startswith(b"HTTP/1.1 200")
    assert s.stop() == 0


def test_SIGUSR1_logs_a_line_of_statistics(make_server, tmp_path):
    s = log_server(make_server, tmp_path)
    s.ok(TEXT, {"prompt": "abc", "max_tokens": 5, "ignore_eos": True})
    s.process.send_signal(signal.SIGUSR1)
    s.wait_until(lambda: b"statistics" in (tmp_path / "log").read_bytes())
    line = next(x for x in (tmp_path / "log").read_text().splitlines() if "statistics" in x)
    assert re.search(
        r"\d+ connections, \d+ being answered; requests: 0 prefill, 0 decode, 0 wait, 1 taken, .* 5 generated; "
        r"pages: \d+ of \d+ free",
        line,
    ), line
    assert s.stop() == 0


def test_SIGQUIT_drains_as_SIGTERM_does(make_server):
    s = make_server("--threads", "1", "--kv-tokens", "8192", model=TINY)
    asked = s.open_request(TEXT, {"prompt": "a", "max_tokens": 200, "ignore_eos": True, "n": 4})
    s.wait_until(lambda: s.stats()["requests"]["submitted"] > 0)  # it may have ended by now: on a busy machine it has
    s.process.send_signal(signal.SIGQUIT)
    assert asked.recv(65536).startswith(b"HTTP/1.1 200")
    assert s.process.wait(20) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_F97_a_signal_while_loading_is_obeyed_at_once(make_server, tmp_path, number):
    """A program that never says it has loaded: one signal ends the server and it, with nothing said to be wrong."""
    state = tmp_path / "state"
    program = f"process:{sys.executable} {ROOT / 'tests/server/fake_backend.py'} load=hang state={state}"
    s = log_server(make_server, tmp_path, "--backend", program, wait=False, model=Path("toy"))
    for _ in range(1000):
        with contextlib.suppress(OSError):
            if len(state.read_text().split()) > 1 and s.get("/health")[0] == 503:
                break
        time.sleep(0.02)
    assert s.get("/health")[1]["error"]["message"] == "Loading model"
    s.process.send_signal(number)
    begun = time.monotonic()
    assert s.process.wait(20) == 0
    assert time.monotonic() - begun < 5
    assert b"stopped while loading" in (tmp_path / "log").read_bytes()
    gone(int(state.read_text().split()[1]))


def test_F51_a_server_for_other_machines_warns_and_checks_names(make_server, tmp_path):
    """Without a key: addresses, names without a dot and those of private networks, what --allow-host says; no other."""
    s = log_server(
        make_server,
        tmp_path,
        "--host",
        "0.0.0.0",
        "--allow-host",
        "llm.example.com",
        "--allow-host",
        "Other.Example.com",
    )
    assert b"without an API key" in (tmp_path / "log").read_bytes()

    def status(host, **more):
        return s.request("GET", "/v1/models", headers={"Host": host} | more)[0]

    port = f":{s.port}"
    for host in (
        "127.0.0.1",
        "localhost",
        "192.168.1.5",
        "10.0.0.1" + port,
        "[fe80::1]" + port,
        "[::1]",
        "radish",
        "radish" + port,
        socket.gethostname(),
        "gpu.local",
        "host.docker.internal" + port,
        "box.lan",
        "x.home.arpa",
        "a.localhost",
        "llm.example.com",
        "LLM.example.com:443",
        "other.example.com",
        "gpu.local.",
    ):
        assert status(host) == 200, host
    for host in (
        "evil.example",
        "evil.example" + port,
        "127.0.0.1.nip.io",
        "127.0.0.1@evil.example",
        "local",
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
        "127.1",
        "localhost.evil.example",
        "evil.local.example",
        "sub.llm.example.com",
        "[::1",
        "[evil.example]",
        "a:b",
        "a:",
        ".local",
        "a b",
    ):
        assert status(host) in ((200,) if host == "local" else (400, 403)), host
    assert s.request("GET", "/health", headers={"Host": "evil.example"})[0] == 403
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    assert (
        s.post(TEXT, body, {"Host": "192.168.1.5" + port, "Origin": "http://192.168.1.5" + port})[0] == 200
    )  # its own page
    assert s.post(TEXT, body, {"Host": "192.168.1.5" + port, "Origin": "http://evil.example"})[0] == 403
    assert s.post(TEXT, body, {"Host": "evil.example", "Origin": "http://evil.example"})[0] == 403


def test_F51_every_name_when_asked_for_and_with_a_key(make_server, tmp_path):
    s = log_server(make_server, tmp_path, "--allow-host", "*")
    assert s.get("/v1/models", {"Host": "evil.example"})[0] == 200
    s = log_server(make_server, tmp_path, "--host", "0.0.0.0", "--api-key", "k")
    assert b"without an API key" not in (tmp_path / "log").read_bytes()
    assert s.get("/v1/models", {"Host": "any.example", "x-api-key": "k"})[0] == 200
