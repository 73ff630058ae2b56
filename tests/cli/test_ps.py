"""radish ps and stop: servers of one user find each other, and no stranger's word is believed."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.request

import pytest

PATIENCE_S = 120


class Servers:
    def __init__(self, radish, root, folder):
        self.radish, self.folder = radish, folder / "run"
        self.model = str(root / "tests/golden/llama/tiny-llama.gguf")
        self.env = {**os.environ, "RADISH_RUN_DIR": str(self.folder), "RADISH_CACHE": ""}
        self.env.pop("RADISH_API_KEY", None)
        self.log = folder / "log"
        self.started = []

    def start(self, *flags, models=(), ready=True):
        """A server and its address."""
        with open(self.log, "ab") as log:
            p = self.radish.start("serve", *(models or [self.model]), "--port", "0", "--threads", "1", "--kv-tokens", "4096", *flags, stdout=subprocess.PIPE, stderr=log, env=self.env, text=True)  # fmt: skip
        self.started.append(p)
        address = re.search(r"at (http://\S+)/v1", p.stdout.readline())[1]
        end = time.monotonic() + PATIENCE_S
        while ready:
            assert time.monotonic() < end
            try:
                urllib.request.urlopen(address.replace("0.0.0.0", "127.0.0.1") + "/health").read()
                break
            except urllib.error.HTTPError:
                time.sleep(0.05)
        return p, address

    def ps(self, *flags):
        r = self.radish("ps", "--json", *flags, env=self.env)
        assert r.returncode == 0, r.err
        return json.loads(r.out)

    def stop(self, *words, **env):
        return self.radish("stop", *words, env={**self.env, **env})

    def entries(self):
        return sorted(os.listdir(self.folder))


@pytest.fixture
def servers(radish, root, tmp_path):
    s = Servers(radish, root, tmp_path)
    yield s
    for p in s.started:
        p.kill()
        p.wait()
        p.stdout.close()


def answer_forever(address, key=None):
    """A stream that takes as long as the test wants: its client reads nothing more than the first bytes."""
    host, port = address.removeprefix("http://").split(":")
    body = json.dumps({"prompt": "a", "max_tokens": 200000, "stream": True, "ignore_eos": True, "context_shift": True})
    s = socket.create_connection((host, int(port)))
    auth = "Authorization: Bearer %s\r\n" % key if key else ""
    s.sendall(("POST /v1/completions HTTP/1.1\r\nHost: %s:%s\r\n%sContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (host, port, auth, len(body), body)).encode())  # fmt: skip
    head = b""
    while b"data: " not in head:  # it runs
        head += s.recv(1000)
        assert b"200 OK" in head, head
    done = threading.Event()

    def drain():
        try:
            while not done.is_set() and s.recv(65536):
                pass
        except OSError:
            pass

    threading.Thread(target=drain, daemon=True).start()
    return s, done


def until(fact):
    end = time.monotonic() + PATIENCE_S
    while not fact():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_nothing_runs(servers):
    assert servers.ps() == [] and not servers.folder.exists()
    assert "no server of yours runs" in servers.radish("ps", env=servers.env).out
    r = servers.stop()
    assert r.returncode == 1 and "no server of yours runs" in r.err


def test_two_servers_are_seen_and_stopped(servers):
    p, address = servers.start()
    q, other = servers.start("--model-id", "second")
    (a, b) = servers.ps()
    assert (a["pid"], a["address"], a["models"], a["loaded"]) == (p.pid, address, ["tiny-llama"], ["tiny-llama"])
    assert (b["pid"], b["address"], b["models"], b["state"]) == (q.pid, other, ["second"], "ready")
    assert a["running"] == a["waiting"] == 0 and a["rss_bytes"] > 1 << 20 and 0 <= a["uptime_s"] < 3600
    assert oct(servers.folder.stat().st_mode & 0o777) == "0o700" and len(servers.entries()) == 2
    text = servers.radish("ps", env=servers.env).out.splitlines()
    assert text[0].split() == ["PID", "ADDRESS", "STATE", "MEMORY", "RUNNING", "WAITING", "UPTIME", "MODELS"]
    assert str(p.pid) in text[1] and address in text[1] and "tiny-llama" in text[1] and "MiB" in text[1]
    shown = servers.radish("completion", "--words", "--", "stop", "", env=servers.env).out
    assert shown.splitlines()[0] == "%d\ttiny-llama at %s" % (p.pid, address)
    r = servers.stop()
    assert r.returncode == 1 and "2 servers run" in r.err and address in r.err and other in r.err
    r = servers.stop("nothing")
    assert r.returncode == 1 and "no server of yours is called nothing" in r.err and address in r.err
    r = servers.stop("second")
    assert r.returncode == 0 and r.out == "stopped %s (process %d)\n" % (other, q.pid) and q.wait(1) == 0
    assert [e["pid"] for e in servers.ps()] == [p.pid]
    assert servers.stop().returncode == 0 and p.wait(1) == 0 and servers.entries() == []


@pytest.mark.parametrize(
    "form", ["%(pid)s", "%(port)s", ":%(port)s", "127.0.0.1:%(port)s", "http://127.0.0.1:%(port)s/v1"]
)
def test_a_server_has_several_names(servers, form):
    p, address = servers.start()
    q, _ = servers.start()
    r = servers.stop("tiny-llama")
    assert r.returncode == 1 and "2 servers are called tiny-llama" in r.err and p.poll() is None and q.poll() is None
    r = servers.stop(form % {"pid": p.pid, "port": address.rsplit(":", 1)[1]})
    assert r.returncode == 0 and p.wait(1) == 0 and q.poll() is None
    assert servers.stop("--all").returncode == 0 and q.wait(1) == 0
    assert servers.stop("--all", "x").returncode == 2


def test_several_models_and_which_is_loaded(servers, root, tmp_path):
    models = tmp_path / "models"
    models.mkdir()
    for name in ("one", "two"):
        (models / (name + ".gguf")).symlink_to(servers.model)
    servers.start(models=[str(models)])
    (e,) = servers.ps()
    assert e["models"] == ["one", "two"] and e["loaded"] == ["one"]
    assert re.search(r"one \(of 2\)$", servers.radish("ps", env=servers.env).out, re.M)
    assert servers.stop("two").returncode == 0


def test_a_key_is_wanted_for_requests_and_not_for_the_rest(servers):
    _, address = servers.start(*("--api-key", "secret"))
    (e,) = servers.ps()
    assert e["state"] == "ready" and e["running"] is None and e["rss_bytes"] > 0 and e["models"] == ["tiny-llama"]
    r = servers.radish("ps", env=servers.env)
    assert "RADISH_API_KEY" in r.err and r.returncode == 0
    assert servers.ps("--api-key", "secret")[0]["running"] == 0
    s, done = answer_forever(address, "secret")
    until(lambda: servers.ps("--api-key", "secret")[0]["running"] == 1)
    assert servers.stop("--now").returncode == 0
    done.set()
    s.close()
    assert "secret" not in servers.log.read_text()


def test_stop_waits_for_requests_and_now_cuts_them(servers):
    p, address = servers.start("--drain", "600")
    s, done = answer_forever(address)
    until(lambda: servers.ps()[0]["running"] == 1)
    waiting = servers.radish.start("stop", stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=servers.env, text=True)
    until(lambda: servers.ps()[0]["state"] == "draining")
    assert waiting.poll() is None and p.poll() is None
    waiting.send_signal(signal.SIGINT)
    out, err = waiting.communicate(timeout=PATIENCE_S)
    assert waiting.returncode == 130 and "--now cuts them" in err and out == "" and p.poll() is None
    r = servers.stop("--now")
    assert r.returncode == 0 and "stopped" in r.out and p.wait(1) == 130
    done.set()
    s.close()
    assert servers.ps() == []


def test_a_terminal_sees_the_wait(servers):
    _, address = servers.start("--drain", "600")
    s, done = answer_forever(address)
    master, slave = pty.openpty()
    waiting = servers.radish.start("stop", stderr=slave, stdout=subprocess.DEVNULL, env=servers.env)
    os.close(slave)
    shown = b""
    while b"1 s (Ctrl-C" not in shown and b"2 s (Ctrl-C" not in shown:
        shown += os.read(master, 4096)
    assert b"\rstopping" not in shown and ("stopping %s: " % address).encode() in shown
    waiting.send_signal(signal.SIGINT)
    assert waiting.wait(PATIENCE_S) == 130
    os.close(master)
    assert servers.stop("--now").returncode == 0
    done.set()
    s.close()


def test_a_killed_server_is_gone_and_its_number_is_not_believed(servers):
    p, _ = servers.start()
    p.kill()
    p.wait()
    (name,) = servers.entries()
    kept = json.loads((servers.folder / name).read_text())
    assert kept["pid"] == p.pid
    assert servers.ps() == [] and servers.entries() == []
    # An entry that somebody holds, with the number of a process that did not make it.
    victim = subprocess.Popen(["sleep", "600"])
    kept["pid"] = victim.pid
    (servers.folder / "fake.json").write_text(json.dumps(kept))
    holder = subprocess.Popen(["flock", servers.folder / "fake.json", "sleep", "600"])
    end = time.monotonic() + PATIENCE_S
    while not (shown := servers.ps()):
        assert time.monotonic() < end
        (servers.folder / "fake.json").exists() or pytest.fail("it was removed while it was held")
    assert shown[0]["pid"] == victim.pid and shown[0]["rss_bytes"] is None and shown[0]["state"] == "silent"
    r = servers.stop("--now", str(victim.pid))
    assert r.returncode == 1 and "another container" in r.err and victim.poll() is None
    subprocess.run(["kill", str(victim.pid), str(holder.pid)], check=True)
    victim.wait()
    holder.wait()


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\0" * 100, b'{"pid": -1, "address": "http://x"}', b'{"pid": 1}', b'{"pid": 1e9, "start": "x", "models": 7, "address": "a"}', b"[" * 60000])  # fmt: skip
def test_an_entry_that_is_none_is_left_out(servers, text):
    servers.folder.mkdir(mode=0o700)
    (servers.folder / "bad.json").write_bytes(text)
    holder = subprocess.Popen(["flock", servers.folder / "bad.json", "sleep", "600"])
    time.sleep(0.2)
    assert servers.ps() == []
    holder.kill()
    holder.wait()


def test_names_from_an_entry_cannot_talk_to_the_terminal(servers):
    servers.folder.mkdir(mode=0o700)
    entry = {
        "pid": 1,
        "start": 1,
        "started": 0,
        "version": "1",
        "address": "http://\x1b[2J",
        "models": ["\x1b]0;x\x07m"],
    }
    (servers.folder / "e.json").write_text(json.dumps(entry))
    holder = subprocess.Popen(["flock", servers.folder / "e.json", "sleep", "600"])
    time.sleep(0.2)
    r = servers.radish("ps", env=servers.env)
    assert "]0;xm" in r.out and "\x1b" not in r.out + r.err
    holder.kill()
    holder.wait()


def hostile(folder, kind):
    if kind == "link":
        (folder.parent / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(folder.parent / "elsewhere")
    elif kind == "file":
        folder.write_text("")
    elif kind == "open":
        folder.mkdir()
        folder.chmod(0o777)
    else:
        folder.mkdir(mode=0o700)
        os.chown(folder, 12345, 12345)


@pytest.mark.parametrize("kind", ["link", "file", "open", *(["foreign"] if os.geteuid() == 0 else [])])
def test_a_folder_that_is_not_ours_alone_is_refused(servers, kind):
    hostile(servers.folder, kind)
    for command in (["ps"], ["stop"]):
        r = servers.radish(*command, env=servers.env)
        assert r.returncode == 1 and str(servers.folder) in r.err and "RADISH_RUN_DIR" in r.err
    p, _ = servers.start()  # it serves all the same
    assert "radish ps and stop will not find this server" in servers.log.read_text()
    if kind != "file":
        assert os.listdir(servers.folder) == []
    p.terminate()
    assert p.wait(PATIENCE_S) == 0


def test_a_folder_that_others_may_read_is_closed(servers):
    servers.folder.mkdir(mode=0o755)
    servers.start()
    assert oct(servers.folder.stat().st_mode & 0o777) == "0o700" and len(servers.ps()) == 1


def test_where_the_folder_is(servers, tmp_path):
    env = {k: v for k, v in servers.env.items() if k != "RADISH_RUN_DIR"}
    servers.env = {**env, "XDG_RUNTIME_DIR": str(tmp_path)}
    p, _ = servers.start()
    assert len(os.listdir(tmp_path / "radish")) == 1 and servers.ps()[0]["pid"] == p.pid
    assert servers.stop(str(p.pid)).returncode == 0


def test_a_server_on_every_address_is_asked_here(servers):
    servers.start("--host", "0.0.0.0", "--api-key", "k")
    (e,) = servers.ps("--api-key", "k")
    assert e["address"].startswith("http://0.0.0.0:") and e["running"] == 0 and e["state"] == "ready"


def test_a_server_behind_a_unix_socket(servers, tmp_path):
    with open(servers.log, "ab") as log:
        p = servers.radish.start("serve", servers.model, "--listen", "unix:sock", "--threads", "1", "--kv-tokens", "4096", stdout=subprocess.PIPE, stderr=log, env=servers.env, cwd=tmp_path, text=True)  # fmt: skip
    servers.started.append(p)
    assert "unix:" in p.stdout.readline()
    until(lambda: servers.ps()[0]["state"] == "ready")
    (e,) = servers.ps()
    assert e["address"] == "unix:%s/sock" % tmp_path and e["running"] == 0
    assert servers.stop(e["address"]).returncode == 0 and p.wait(1) == 0
