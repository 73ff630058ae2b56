"""Keys of a server: hashed files, the admin, SIGHUP, pages of other origins."""

import hashlib
import json
import os
import pty
import re
import signal
import subprocess
import threading
import time

import pytest
from radish_server import BUILD, TINY, free_port

TEXT = "/v1/completions"
SMALL = ("--threads", "1", "--kv-tokens", "8192")


def make_key(*args):
    """The key, and the rest of what is printed."""
    out = subprocess.run([BUILD / "radish", "key", *args], check=True, capture_output=True, text=True).stdout
    key, _, rest = out.partition("\n")
    return key, rest


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def keys(make_server, tmp_path):
    """A server with alice, bob and an admin, its file, and their headers."""
    path = tmp_path / "keys"
    made = {name: make_key(name, "--file", path)[0] for name in ("alice", "bob")}
    made["root"] = make_key("root", "--admin", "--file", path)[0]
    with open(tmp_path / "log", "wb") as log:
        s = make_server(*SMALL, "--api-key", "own-key", "--api-key-file", str(path), model=TINY, log=log)
    return s, path, {name: bearer(key) for name, key in made.items()} | {"own": bearer("own-key")}


def test_radish_key_makes_lines_that_let_its_keys_in(keys):
    s, path, by = keys
    text = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(re.findall(r"^(alice|bob) sha256:[\w-]{22}:[0-9a-f]{64}$", text, re.M)) == 2
    assert re.search(r"^root sha256:\S+ admin$", text, re.M)
    assert len({line.split(":")[1] for line in text.splitlines()}) == 1  # one salt: hashed once a request
    for headers in by.values():
        assert headers["Authorization"].removeprefix("Bearer ") not in text
        assert s.get("/v1/models", headers)[0] == 200
    assert s.get("/v1/models")[0] == 401 and s.get("/v1/models", bearer("alice"))[0] == 401
    assert s.get("/v1/models", bearer(text.split()[1]))[0] == 401  # what the file holds lets nobody in


def test_a_file_that_is_cut_in_a_line_changes_nothing(make_server, tmp_path):
    path = tmp_path / "keys"
    path.write_text("first-key\nsecond-key\n")
    with open(tmp_path / "log", "wb") as log:
        s = make_server(*SMALL, "--api-key-file", str(path), model=TINY, log=log)
    path.write_text("first-key\nsec")  # written half
    s.process.send_signal(signal.SIGHUP)
    s.wait_until(lambda: b"it may have been cut" in (tmp_path / "log").read_bytes())
    assert [s.get("/v1/models", bearer(k))[0] for k in ("first-key", "second-key", "sec")] == [200, 200, 401]
    other = tmp_path / "other"
    other.write_text("first-key\nthird-key\n")
    other.rename(path)
    s.process.send_signal(signal.SIGHUP)
    s.wait_until(lambda: s.get("/v1/models", bearer("third-key"))[0] == 200)
    assert s.get("/v1/models", bearer("second-key"))[0] == 401
    assert s.stop() == 0


def test_a_line_that_does_not_fit_leaves_nothing(tmp_path):
    """The disk takes only a part of it: here the limit on a file's size does."""
    path = tmp_path / "keys"
    make_key("alice", "--file", path)
    before = path.read_bytes()
    limit = f"--fsize={len(before) + 30}"
    line = ["env", "--ignore-signal=XFSZ", "prlimit", limit, BUILD / "radish", "key", "bob", "--file", path]
    r = subprocess.run(line, capture_output=True, text=True)
    assert r.returncode == 1 and r.stdout == "" and path.read_bytes() == before, r


def test_a_key_that_cannot_be_printed_is_said_to_be_lost(tmp_path):
    """Its line is in the file by then: nobody has the key, and somebody has to know."""
    path = tmp_path / "keys"
    with open("/dev/full", "wb") as full:
        r = subprocess.run([BUILD / "radish", "key", "erin", "--file", path], stdout=full, stderr=subprocess.PIPE)
    assert r.returncode == 1 and b"the key is lost" in r.stderr and str(path).encode() in r.stderr, r


def test_a_key_is_printed_with_its_line_where_there_is_no_file():
    key, line = make_key("carol")
    assert re.fullmatch(r"rk-[\w-]{43}", key) and re.fullmatch(r"carol sha256:[\w-]{22}:[0-9a-f]{64}\n", line)
    r = subprocess.run([BUILD / "radish", "key", "no spaces"], capture_output=True, text=True)
    assert r.returncode == 2 and "letters, digits" in r.stderr


def test_no_line_is_added_behind_one_without_its_end(tmp_path):
    """Which may have been cut: with an end it would be a key."""
    path = tmp_path / "keys"
    path.write_text("plain-ke")
    r = subprocess.run([BUILD / "radish", "key", "dave", "--file", path], capture_output=True, text=True)
    assert r.returncode == 1 and "the last line has no newline at its end" in r.stderr and r.stdout == ""
    assert path.read_text() == "plain-ke"


def test_what_concerns_all_is_the_admins_alone(keys):
    s, _, by = keys
    for who, want in ("root", 200), ("own", 403), ("alice", 403):
        assert s.get("/v1/monitor", by[who])[0] == want, who
        assert s.request("DELETE", "/v1/cache", headers=by[who])[0] == want, who
        assert s.request("DELETE", "/v1/monitor/requests/123", headers=by[who])[0] == (404 if want == 200 else 403), who
    mark = {"prompt": "own words of the server", "max_tokens": 1}
    assert s.post(TEXT, mark, by["alice"])[0] == 200
    assert len(s.get("/v1/cache", by["root"])[1]["nodes"]) > len(s.get("/v1/cache", by["own"])[1]["nodes"])


def test_an_admin_key_protects_a_server_that_is_open(make_server):
    s = make_server(*SMALL, model=TINY, env={"RADISH_ADMIN_KEY": "the-admin"})
    assert s.post(TEXT, {"prompt": "a", "max_tokens": 1})[0] == 200
    assert s.get("/v1/monitor")[0] == 403 and s.get("/v1/monitor", bearer("the-admin"))[0] == 200
    assert s.request("DELETE", "/v1/cache")[0] == 403
    assert s.request("DELETE", "/v1/cache", headers=bearer("the-admin"))[0] == 200


def test_two_keys_of_a_name_share_and_names_do_not(keys):
    s, path, by = keys
    second = bearer(make_key("alice", "--file", path)[0])
    s.process.send_signal(signal.SIGHUP)
    s.wait_until(lambda: s.get("/v1/models", second)[0] == 200)
    ask = {"prompt": "Once upon a time there was a small house. " * 3, "max_tokens": 2, "temperature": 0}
    cached = [
        s.post(TEXT, ask, who)[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
        for who in (by["alice"], second, by["bob"])
    ]
    assert cached[0] == 0 and cached[1] > 30 and cached[2] == 0
    # its own numbers, whichever of its keys asks
    assert s.get("/stats", by["alice"])[1] == s.get("/stats", second)[1]


def test_SIGHUP_reads_the_keys_again_and_drops_nothing(keys, tmp_path):
    s, path, by = keys
    failed, stop = [], threading.Event()

    def ask():
        while not stop.is_set():
            status, answer = s.post(TEXT, {"prompt": "abc", "max_tokens": 20, "ignore_eos": True}, by["alice"])
            if status != 200 or answer["usage"]["completion_tokens"] != 20:
                failed.append((status, answer))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for t in threads:
        t.start()
    text = path.read_text()
    without_bob = "".join(line for line in text.splitlines(True) if not line.startswith("bob"))
    for i in range(10):
        path.write_text(without_bob if i % 2 == 0 else text)
        s.process.send_signal(signal.SIGHUP)
        s.wait_until(lambda i=i: s.get("/v1/models", by["bob"])[0] == (401 if i % 2 == 0 else 200))
    path.write_text(text.replace("sha256", "md5"))  # wrong: the ones before stay
    s.process.send_signal(signal.SIGHUP)
    s.wait_until(lambda: b"the keys stay as they were" in (tmp_path / "log").read_bytes())
    assert s.get("/v1/models", by["bob"])[0] == 200
    stop.set()
    for t in threads:
        t.join()
    assert failed == []
    log = (tmp_path / "log").read_text()
    assert "keys: 3 of the file, read again" in log
    assert not any(h["Authorization"].removeprefix("Bearer ") in log for h in by.values())
    assert s.stop() == 0


def test_a_file_that_is_wrong_or_missing_is_no_start(make_server, tmp_path):
    for text in None, "", "a b c\n":
        if text is not None:
            (tmp_path / "keys").write_text(text)
        with open(tmp_path / "log", "wb") as log:
            s = make_server(*SMALL, "--api-key-file", str(tmp_path / "keys"), model=TINY, wait=False, log=log)
            assert s.process.wait(30) == 1
        assert b"keys" in (tmp_path / "log").read_bytes()


def test_a_key_that_is_too_long_is_no_key(make_server, tmp_path):
    """512 bytes at most: at the start, and in a request; nothing of it is told."""
    longest, longer = "k" * 512, "k" * 513
    s = make_server(*SMALL, model=TINY, env={"RADISH_API_KEY": longest})
    assert s.get("/v1/models", bearer(longest))[0] == 200 and s.get("/v1/models", bearer(longer))[0] == 401
    for name, flag in ("RADISH_API_KEY", b"--api-key: "), ("RADISH_ADMIN_KEY", b"--admin-key: "):
        with open(tmp_path / "log", "wb") as log:
            s = make_server(*SMALL, model=TINY, env={name: longer}, wait=False, log=log)
            assert s.process.wait(60) == 1
        said = (tmp_path / "log").read_bytes()
        assert flag + b"a key has at most 512 bytes" in said and b"kkk" not in said


def test_wrong_keys_are_held_back_where_each_line_has_a_salt(make_server, tmp_path):
    keys = [f"key-{i}" for i in range(4096)]
    lines = (f"t{i} sha256:s{i}:{hashlib.sha256(f's{i}{key}'.encode()).hexdigest()}\n" for i, key in enumerate(keys))
    (tmp_path / "keys").write_text("".join(lines))
    s = make_server(*SMALL, "--api-key-file", str(tmp_path / "keys"), model=TINY)
    assert s.get("/v1/models", bearer(keys[0]))[0] == 200
    told = []
    while 429 not in told and len(told) < 1000:
        status, headers, answer = s.request("GET", "/v1/models", headers=bearer("w" * 512))
        told.append(status)
    assert told[0] == 401 and set(told) == {401, 429}
    assert headers["retry-after"] == "1" and b"too many wrong API keys" in answer
    assert s.get("/v1/models", bearer(keys[0]))[0] == 200  # it is known, and not held back
    s.wait_until(lambda: s.get("/v1/models", bearer(keys[1]))[0] == 200)  # a new one is, for a moment
    assert s.stop() == 0


def test_a_closed_terminal_ends_it_and_a_signal_by_hand_does_not(tmp_path):
    """Started from a terminal (a pseudo one): SIGHUP by hand reads the keys; when the terminal is closed it drains."""
    port = free_port()
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        program = str(BUILD / "radish")
        os.execv(program, [program, "serve", str(TINY), *SMALL, "--port", str(port), "--config", ""])
    read = b""
    while b"ready" not in read:
        read += os.read(terminal, 4096)
    os.kill(pid, signal.SIGHUP)
    while b"no key file" not in read:
        read += os.read(terminal, 4096)
    assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    os.close(terminal)
    end = time.monotonic() + 20
    while (done := os.waitpid(pid, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
        time.sleep(0.05)
    if done == (0, 0):
        os.kill(pid, signal.SIGKILL)
    assert done[0] == pid and os.waitstatus_to_exitcode(done[1]) == 0


# ---- pages of other origins ----


def preflight(s, origin, headers=None):
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-own"}
    return s.request("OPTIONS", TEXT, headers=asked | (headers or {}))


@pytest.mark.parametrize("key", [None, "k"], ids=["open", "with-a-key"])
def test_only_origins_on_the_list_may_call(make_server, key):
    flags = ("--allow-origin", "https://app.example", "--allow-origin", "http://localhost:3000")
    s = make_server(*SMALL, *flags, model=TINY, env={"RADISH_API_KEY": key or ""})
    mine = bearer(key) if key else {}
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    for origin in "https://app.example", "http://localhost:3000":
        status, headers, _ = preflight(s, origin)
        assert status == 204 and headers["access-control-allow-origin"] == origin
        assert "x-own" in headers["access-control-allow-headers"] and "Origin" in headers["vary"]
        assert "access-control-allow-credentials" not in headers
        status, headers, _ = s.request("POST", TEXT, body, mine | {"Origin": origin})
        assert status == 200 and headers["access-control-allow-origin"] == origin
    own = f"http://localhost:{s.port}"
    assert s.request("POST", TEXT, body, mine | {"Origin": own, "Host": f"localhost:{s.port}"})[0] == 200
    for origin in (
        "https://evil.example",
        "http://app.example",
        "https://app.example:8443",
        "https://app.example.evil.example",
        "http://localhost:3001",
        "null",
        "",
    ):
        status, headers, _ = preflight(s, origin)
        assert (status, "access-control-allow-origin" in headers) == (403, False), origin
        assert s.request("POST", TEXT, body, mine | {"Origin": origin})[0] == 403, origin
    assert s.request("POST", TEXT, body, mine)[0] == 200  # programs send none


def test_every_origin_when_asked_for(make_server):
    s = make_server(*SMALL, "--allow-origin", "*", model=TINY)
    status, headers, _ = preflight(s, "https://any.example")
    assert status == 204 and headers["access-control-allow-origin"] == "https://any.example"
    assert "access-control-allow-credentials" not in headers
