"""A hub of models on this machine, with the API that `radish pull` and huggingface_hub use, and with faults on demand.

    hub = HubServer()
    commit = hub.add("org/name", {"model-Q4_K_M.gguf": b"GGUF..."})
    hub.faults["model-Q4_K_M.gguf"] = [cut(100), status(429, {"Retry-After": "0"})]     # one per request, in order
    hub.url, hub.seen                                                                   # every request: Seen
    hub.close()

Files of at least LFS_BYTES are "large": the hub redirects to its store, on another port (another host to a client), which
must never see a token.
"""

import hashlib
import http.server
import itertools
import json
import socket
import threading
import urllib.parse
from collections import namedtuple

LFS_BYTES = 64
Seen = namedtuple("Seen", "server method path headers status")


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def git_sha(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def cut(n):
    """The connection ends after n bytes of the body."""
    return ("cut", n)


def stall(n, seconds):
    """n bytes, then silence."""
    return ("stall", (n, seconds))


def status(code, headers=None, after=None):
    """An answer without the file."""
    return ("status", (code, headers or {}))


def swap(data):
    """Other bytes than the list says."""
    return ("swap", data)


def whole():
    """The whole file, whatever range was asked for."""
    return ("whole", None)


def to(url):
    """A redirect elsewhere."""
    return ("status", (302, {"Location": url}))


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def send(self, code, headers=None, body=b""):
        self.server.hub.saw(self, code)
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if "Content-Length" not in (headers or {}):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        try:
            self.server.hub.answer(self)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True


class Listener(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, hub, name):
        super().__init__(("127.0.0.1", 0), Handler)
        self.hub, self.name = hub, name
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def handle_error(self, request, client_address):
        pass

    @property
    def url(self):
        return "http://127.0.0.1:%d" % self.server_address[1]


class HubServer:
    def __init__(self):
        self.repos, self.store, self.faults, self.seen = {}, {}, {}, []
        self.token, self.page, self.lock, self.stopped = None, 1000, threading.Lock(), threading.Event()
        self.edit = lambda entries: entries  # of the list of files
        self.etag = None  # a function: the ETag of every file's bytes, or None
        self.named = {}  # x.gguf of /named/x.gguf: a function that gives its bytes now
        self.lives = None  # requests that an address of the store holds for; None: any number
        self.uses, self.numbers = {}, itertools.count()  # of each address; these
        self.pace = 0  # seconds before each 64 KiB of a body
        self.n_open = self.most_at_once = self.n_sent = 0  # bodies being sent; bytes of them
        self.hub, self.blobs = Listener(self, "hub"), Listener(self, "store")
        self.url = self.hub.url

    def close(self):
        self.stopped.set()
        for s in (self.hub, self.blobs):
            s.shutdown()
            s.server_close()

    def add(self, repo, files, branch="main"):
        commit = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        r = self.repos.setdefault(repo, {"refs": {}, "commits": {}})
        r["refs"][branch] = commit
        r["commits"][commit] = files
        for data in files.values():
            self.store[sha256(data)] = data
        return commit

    def saw(self, handler, code):
        with self.lock:
            self.seen.append(
                Seen(
                    handler.server.name,
                    handler.command,
                    handler.path,
                    {k.lower(): v for k, v in handler.headers.items()},
                    code,
                )
            )

    def fault(self, key):
        with self.lock:
            waiting = self.faults.get(key)
            return waiting.pop(0) if waiting else None

    def requests(self, part):
        return [s for s in self.seen if part in s.path]

    # ---- answers ----

    def answer(self, h):
        path = urllib.parse.unquote(h.path.split("?")[0])
        if h.server.name == "store":
            with self.lock:
                self.uses[h.path] = self.uses.get(h.path, 0) + 1
            if self.lives and self.uses[h.path] > self.lives:
                return h.send(403)
            return self.give(h, path.rsplit("/", 1)[1], self.store.get(path.split("/")[2]), {})
        if self.token and h.headers.get("Authorization") != "Bearer " + self.token:
            return h.send(401, {"X-Error-Message": "Invalid credentials", "X-Error-Code": "GatedRepo"})
        parts = path.strip("/").split("/")
        if parts == ["api", "models"]:
            return self.search(h)
        if parts[:2] == ["api", "models"]:
            return self.api(h, "/".join(parts[2:4]), parts[4:])
        if parts[2:3] == ["resolve"]:
            return self.resolve(h, "/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        if path.startswith("/named/"):
            data = self.named[parts[-1]]()
            return self.give(h, parts[-1], data, {"ETag": '"%s"' % sha256(data)})
        if path.startswith("/plain/"):
            data = self.store.get(path.split("/")[2])
            return self.give(h, parts[-1], data, {"ETag": '"%s"' % path.split("/")[2]})
        h.send(404)

    def commit(self, repo, revision):
        r = self.repos.get(repo)
        return r and (r["refs"].get(revision) or (revision if revision in r["commits"] else None))

    def api(self, h, repo, rest):
        kind, revision = (rest + ["revision", "main"])[:2] if rest else ("revision", "main")
        fault = self.fault("api/" + kind)
        if fault:
            return h.send(*fault[1])
        revision = "/".join(rest[1:]) if len(rest) > 1 else "main"
        commit = self.commit(repo, revision)
        if not commit:
            return h.send(404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        files = self.repos[repo]["commits"][commit]
        if kind == "revision":
            siblings = [{"rfilename": name} for name in files]
            return self.json(h, {"id": repo, "sha": commit, "siblings": siblings, "private": False})
        entries = [self.entry(*item) for item in sorted(files.items())]
        folders = {name.rsplit("/", 1)[0] for name in files if "/" in name}
        entries = self.edit([{"type": "directory", "oid": "0" * 40, "size": 0, "path": f} for f in folders] + entries)
        if not isinstance(entries, list):
            return self.json(h, entries)
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(h.path).query)
        at = int(query.get("cursor", ["0"])[0])
        headers = {}
        if at + self.page < len(entries):
            next_page = "%s%s?recursive=true&cursor=%d" % (self.url, h.path.split("?")[0], at + self.page)
            headers["Link"] = '<%s>; rel="next"' % next_page
        self.json(h, entries[at : at + self.page], headers)

    def search(self, h):
        fault = self.fault("api/search")
        if fault and fault[0] == "stall":
            return self.stopped.wait(fault[1][1])
        if fault:
            return h.send(*fault[1])
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(h.path).query)
        words = query.get("search", [""])[0].lower()
        found = [
            {"id": repo, "downloads": 10 + i, "likes": i, "gated": False, "tags": ["gguf"] if "GGUF" in repo else []}
            for i, repo in enumerate(self.repos)
            if words in repo.lower()
        ]
        self.json(h, self.edit(found)[: int(query["limit"][0])])

    def json(self, h, value, headers=None):
        h.send(200, {"Content-Type": "application/json", **(headers or {})}, json.dumps(value).encode())

    @staticmethod
    def entry(name, data):
        e = {"type": "file", "oid": git_sha(data), "size": len(data), "path": name}
        if len(data) >= LFS_BYTES:
            e["lfs"] = {"oid": sha256(data), "size": len(data), "pointerSize": 130}
        return e

    def resolve(self, h, repo, revision, name):
        commit = self.commit(repo, revision)
        data = commit and self.repos[repo]["commits"][commit].get(name)
        if data is None:
            return h.send(404, {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
        fault = self.fault("resolve/" + name)
        if fault:
            return h.send(*fault[1])
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if len(data) < LFS_BYTES:
            return self.give(h, name, data, {**headers, "ETag": '"%s"' % git_sha(data)})
        where = "%s/blob/%s/%s" % (self.blobs.url, sha256(data), urllib.parse.quote(name.rsplit("/", 1)[-1]))
        if self.lives:
            where += "?number=%d" % next(self.numbers)
        headers |= {"X-Linked-Etag": '"%s"' % sha256(data), "X-Linked-Size": str(len(data)), "Location": where}
        h.send(302, headers)

    def send_body(self, h, body):
        with self.lock:
            self.n_open += 1
            self.most_at_once = max(self.most_at_once, self.n_open)
        try:
            for at in range(0, len(body), 65536):
                if self.pace:
                    self.stopped.wait(self.pace)
                h.wfile.write(body[at : at + 65536])
                with self.lock:
                    self.n_sent += len(body[at : at + 65536])
        finally:
            with self.lock:
                self.n_open -= 1

    def give(self, h, name, data, headers):
        """The bytes of a file, with the next fault of its name."""
        if data is None:
            return h.send(404)
        kind, arg = (self.fault(name) if h.command == "GET" else None) or (None, None)
        if kind == "status":
            return h.send(*arg)
        if kind == "swap":
            data = arg
        if self.etag:
            headers = {k: v for k, v in headers.items() if k != "ETag"} | {"ETag": self.etag()}
            headers = {k: v for k, v in headers.items() if v}
        start, end, code = 0, len(data), 200
        asked = h.headers.get("Range")
        if_range = h.headers.get("If-Range")
        if asked and kind != "whole" and if_range in (None, headers.get("ETag")):
            start, end = asked.removeprefix("bytes=").split("-")
            start, end = int(start), min(int(end or len(data)), len(data) - 1)
            if start >= len(data):
                return h.send(416, {"Content-Range": "bytes */%d" % len(data)})
            code = 206
            headers = {**headers, "Content-Range": "bytes %d-%d/%d" % (start, end, len(data))}
        body = data[start : end + 1]
        headers = {**headers, "Content-Length": str(len(body))}
        if kind == "cut":
            body = body[:arg]
        if kind == "stall":
            h.send(code, headers, body[: arg[0]])
            h.wfile.flush()
            self.stopped.wait(arg[1])
            h.close_connection = True
            return
        h.send(code, headers)
        if h.command != "HEAD":
            self.send_body(h, body)
        if kind == "cut":
            h.wfile.flush()
            h.connection.shutdown(socket.SHUT_RDWR)
            h.close_connection = True
