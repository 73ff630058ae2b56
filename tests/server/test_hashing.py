"""nginx and HAProxy as docs/scale.md has them, in front of two servers: a conversation stays where its beginning is, others go
elsewhere, and of HAProxy's servers one that drains or is gone gets nobody."""

import contextlib
import os
import subprocess
import time

import pytest
from radish_server import ROOT, TINY, Server, free_port

ENV = os.environ | {"PATH": os.environ["PATH"] + ":/usr/sbin"}
N_SESSIONS, TURNS = 12, 3


class Front(Server):
    """It speaks as a server does."""

    def __init__(self, port, command, said):
        self.port = port
        with open(said, "wb") as f:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=f, stderr=f, env=ENV)
        for _ in range(400):
            assert self.process.poll() is None, said.read_text()
            with contextlib.suppress(OSError, ValueError):
                if self.get("/health")[0] == 200:
                    return
            time.sleep(0.05)
        raise AssertionError(said.read_text())


def block(begin, servers):
    """The lines of the document's example, with these servers in place of a, b and c."""
    lines = (ROOT / "docs/scale.md").read_text().split(f"    {begin}")[1].split("\n\n")[0].split("\n")
    text = "\n".join([begin + lines[0].split("#")[0], *(line[4:] for line in lines[1:])])
    assert "c:8000" not in text or "server c:8000;" in text
    text = text.replace(" server c:8000;", "")
    for name, s in zip("ab", servers):
        assert f"{name}:8000" in text
        text = text.replace(f"{name}:8000", f"127.0.0.1:{s.port}")
    return text


def start_nginx(servers, folder, port):
    temp = "".join(f"{k}_temp_path {folder}/{k};\n" for k in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (folder / "nginx.conf").write_text(
        f"{'user root;' if os.geteuid() == 0 else ''}\ndaemon off;\npid {folder}/pid;\nerror_log {folder}/error.log;\n"
        f"worker_processes 1;\nevents {{}}\nhttp {{\naccess_log off;\n{temp}{block('upstream radish {', servers)}\n"
        f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://radish; proxy_buffering off; "
        "proxy_set_header Host $http_host; } } }\n"
    )
    return ["nginx", "-c", folder / "nginx.conf", "-p", folder]


def start_haproxy(servers, folder, port):
    head = (ROOT / "deploy/haproxy.cfg").read_text().split("defaults radish")[1].split("frontend")[0]
    (folder / "haproxy.cfg").write_text(
        f"global\n    maxconn 1000\n\ndefaults radish{head}\nfrontend in from radish\n    bind 127.0.0.1:{port}\n"
        f"    default_backend radish\n\n{block('backend radish', servers).replace('backend radish', 'backend radish from radish')}\n"
    )
    return ["haproxy", "-db", "-f", folder / "haproxy.cfg"]


@pytest.fixture
def servers():
    made = [Server("--threads", "1", model=TINY, wait=False) for _ in range(2)]
    for s in made:
        s.wait_ready()
    yield made
    for s in made:
        if s.process.poll() is None:
            assert s.stop() == 0


@contextlib.contextmanager
def fronted(start, servers, folder):
    port = free_port()
    f = Front(port, start(servers, folder, port), folder / "said")
    try:
        yield f
    finally:
        f.process.terminate()
        f.process.wait(20)


@pytest.fixture(params=[start_nginx, start_haproxy], ids=["nginx", "haproxy"])
def front(request, servers, tmp_path):
    with fronted(request.param, servers, tmp_path) as f:
        yield f


def submitted(servers):
    return [s.stats()["requests"]["submitted"] for s in servers]


def turn(front, session, k, header="X-Session-ID"):
    """The k-th turn of a conversation: its tokens of the prompt, and of those the cached ones."""
    prompt = f"{session}: " + "".join(f"{i} and so it went on, " for i in range(k + 1))
    value = f"conversation-{session}" if header == "X-Session-ID" else f"Bearer key-{session}"
    status, answer = front.post("/v1/completions", {"prompt": prompt, "max_tokens": 1}, {header: value})
    assert status == 200, answer
    return answer["usage"]["prompt_tokens"], answer["timings"]["cache_n"]


def test_a_conversation_stays_where_it_is(front, servers):
    where = {}
    for k in range(TURNS):
        for session in range(N_SESSIONS):
            before = submitted(servers)
            n, n_cached = turn(front, session, k)
            at = [a - b for a, b in zip(submitted(servers), before)].index(1)
            assert where.setdefault(session, at) == at
            assert k == 0 or n_cached >= 0.4 * n  # all of the turn before
    assert set(where.values()) == {0, 1}


def test_without_a_session_nginx_goes_by_the_key(servers, tmp_path):
    with fronted(start_nginx, servers, tmp_path) as front:
        for session in range(N_SESSIONS):
            before = submitted(servers)
            for k in range(2):
                turn(front, session, k, "Authorization")
            assert sorted(a - b for a, b in zip(submitted(servers), before)) == [0, 2]
        assert min(submitted(servers)) > 0


def test_haproxy_leaves_out_who_drains_and_who_is_gone(servers, tmp_path):
    with fronted(start_haproxy, servers, tmp_path) as front:
        assert servers[0].post("/v1/drain", {})[0] == 200
        time.sleep(5)  # it asks every two seconds
        before = submitted(servers)
        for session in range(N_SESSIONS):
            turn(front, session, 0)
        assert [a - b for a, b in zip(submitted(servers), before)] == [0, N_SESSIONS]
        assert servers[0].stop() == 0
        for session in range(N_SESSIONS):
            turn(front, session, 1)
