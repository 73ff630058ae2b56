"""A small HTTP/1.1 client for measuring: raw sockets, one thread, little work per token.

get, post      one request on a connection of its own
Stream         one streamed completion; its times are taken when bytes arrive and are parsed afterwards
run_streams    many of them at once, by one selector
"""

import json
import selectors
import socket
import time

HOST = "127.0.0.1"


def connect(port, timeout=600):
    s = socket.create_connection((HOST, port), timeout=timeout)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


def head_of(method, path, body=b"", keep_alive=False):
    return (
        "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: %s\r\n\r\n"
        % (method, path, HOST, len(body), "keep-alive" if keep_alive else "close")
    ).encode() + body


def _read_all(s):
    parts = []
    while True:
        part = s.recv(1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)


def dechunk(raw):
    """The body of a response: (status, bytes)."""
    head, _, body = raw.partition(b"\r\n\r\n")
    status = int(head.split(None, 2)[1]) if head else 0
    if b"transfer-encoding: chunked" not in head.lower():
        return status, body
    out, at = [], 0
    while True:
        end = body.find(b"\r\n", at)
        if end < 0:
            break
        size = int(body[at:end].split(b";")[0] or b"0", 16)
        if size == 0:
            break
        out.append(body[end + 2 : end + 2 + size])
        at = end + 2 + size + 2
    return status, b"".join(out)


def get(port, path, timeout=60):
    with connect(port, timeout) as s:
        s.sendall(head_of("GET", path))
        return dechunk(_read_all(s))


def post(port, path, body, timeout=600):
    """(status, parsed JSON)"""
    with connect(port, timeout) as s:
        s.sendall(head_of("POST", path, json.dumps(body).encode()))
        status, answer = dechunk(_read_all(s))
    return status, json.loads(answer or b"null")


def must_post(port, path, body, timeout=600):
    status, answer = post(port, path, body, timeout)
    if status != 200:
        raise RuntimeError("%s: %d %s" % (path, status, str(answer)[:400]))
    return answer


def tokenize(port, text):
    return must_post(port, "/tokenize", {"content": text, "add_special": False})["tokens"]


class Stream:
    """A streamed request. sent_s and arrivals [(s, bytes)] are times of time.monotonic()."""

    def __init__(self, port, path, body):
        self.port = port
        self.request = head_of("POST", path, json.dumps({**body, "stream": True}).encode())
        self.sent_s, self.arrivals, self.socket, self.ended = None, [], None, False

    def open(self):
        self.socket = connect(self.port)
        self.sent_s = time.monotonic()
        self.socket.sendall(self.request)
        self.socket.setblocking(False)
        return self

    def read(self):
        """Takes what is there; False at the end."""
        try:
            part = self.socket.recv(1 << 16)
        except BlockingIOError:
            return True
        except ConnectionError:
            part = b""
        if part:
            self.arrivals.append((time.monotonic(), part))
            if b"[DONE]" in part:
                self.ended = True
            else:
                return True
        self.socket.close()
        return False

    def n_events_so_far(self):
        return sum(part.count(b"data: ") for _, part in self.arrivals)

    def events(self):
        """[(s, object)] of the data lines; chunk framing does not get in the way, for no JSON text holds a newline."""
        found, rest = [], b""
        for at, part in self.arrivals:
            lines = (rest + part).split(b"\n")
            rest = lines.pop()
            for line in lines:
                if line.startswith(b"data: {"):
                    try:
                        found.append((at, json.loads(line[6:])))
                    except ValueError:
                        pass  # cut by chunk framing in the middle: not one of our servers
        return found

    def summary(self):
        """{"tokens": [(s, text)], "usage", "timings", "status"}: pieces of text that arrived, in order."""
        tokens, usage, timings = [], None, None
        for at, event in self.events():
            if "error" in event:
                raise RuntimeError("stream: %s" % str(event["error"])[:300])
            usage, timings = event.get("usage") or usage, event.get("timings") or timings
            for choice in event.get("choices") or []:
                delta = choice.get("delta") or {}
                text = (
                    choice.get("text")
                    or delta.get("content")
                    or delta.get("reasoning_content")
                    or delta.get("reasoning")
                )
                if text:
                    tokens.append((at, text))
        first = self.arrivals[0][1] if self.arrivals else b""
        status = int(first.split(None, 2)[1]) if first.startswith(b"HTTP/") else 0
        if status != 200:
            raise RuntimeError("stream: %d %s" % (status, b"".join(p for _, p in self.arrivals)[-300:]))
        return {"tokens": tokens, "usage": usage, "timings": timings, "status": status}


def run_streams(streams, until=None, at=None):
    """Opens all, reads all to their ends. until(): a stop asked for from outside, checked twice a second. at: when each
    is opened, seconds from now in ascending order; default: at once."""
    with selectors.DefaultSelector() as selector:
        begin, opened, left = time.monotonic(), 0, len(streams)
        while left:
            while opened < len(streams) and (not at or at[opened] <= time.monotonic() - begin):
                selector.register(streams[opened].open().socket, selectors.EVENT_READ, streams[opened])
                opened += 1
            next_s = at[opened] - (time.monotonic() - begin) if opened < len(streams) else 0.5
            for key, _ in selector.select(max(0.0, min(0.5, next_s))):
                socket_of = key.fileobj
                if not key.data.read():
                    selector.unregister(socket_of)
                    left -= 1
            if until and until():
                break
        for s in streams[:opened]:
            s.socket.close()
    return streams


def complete(port, body, path="/v1/completions"):
    """One streamed request: (ms to the first piece of text, ms to the end, summary)."""
    s = run_streams([Stream(port, path, body)])[0]
    summary = s.summary()
    first = summary["tokens"][0][0] if summary["tokens"] else s.arrivals[-1][0]
    return (first - s.sent_s) * 1e3, (s.arrivals[-1][0] - s.sent_s) * 1e3, summary
