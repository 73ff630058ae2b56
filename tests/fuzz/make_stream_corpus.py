#!/usr/bin/env python3
"""Writes the first inputs of fuzz_http_stream, fuzz_page_store and fuzz_memory_file. Run by hand; what they gave is in corpus/."""

import json
import struct
from pathlib import Path

CORPUS = Path(__file__).resolve().parent / "corpus"


def write(target, name, data):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def request(path, body=b"", method=None, *headers):
    method = method or ("POST" if body else "GET")
    head = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    if body:
        head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def streams():
    health, tokens = request("/health"), request("/tokenize", json.dumps({"content": "the thing"}).encode())
    message = [{"role": "user", "content": "hi"}]
    chunked = b'POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n{"conten\r\n9;x=y\r\nt":"the"}\r\n0\r\nA: b\r\n\r\n'
    seeds = {
        "one": health,
        "many": health * 40,
        "mixed": tokens + health + chunked + request("/v1/models") + tokens,
        "head": request("/health", method="HEAD") * 3,
        "options": request("/v1/models", b"", "OPTIONS", "Origin: http://localhost") + health,
        "delete": request("/v1/cache", b"{}", "DELETE") + request("/v1/responses/resp_1", b"", "DELETE") + health,
        "wrong": request("/nothing") + request("/tokenize", b'{"content":') + request("/tokenize", b"", "PUT") + health,
        "ambiguous": tokens.replace(b"Host: localhost", b"Host: localhost\r\nTransfer-Encoding: chunked"),
        "folded": b"GET / HTTP/1.1\r\nHost: localhost\r\n a\r\n\r\n",
        "http10": b"GET /health HTTP/1.0\r\n\r\n" + health,
        "expect": request("/tokenize", b'{"content":"a"}', None, "Expect: 100-continue") + health,
        "empty lines": b"\r\n\r\n\r\n" + health,
        "bare": b"GET /health HTTP/1.1\nHost: localhost\n\n",
        "upgrade": request("/health", b"", None, "Connection: Upgrade", "Upgrade: h2c"),
        "no length": b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n\r\n" + health,
        "encoded": request("/%2e/health//?a=b") + request("/v1/v1/models/"),
        "chunked": chunked + health,
        "bad chunk": chunked.replace(b"8\r\n", b"fffffffff\r\n"),
        "cut": tokens[:-4],
        "large": request("/tokenize", b" " * 70000) + health,
        "template": request("/apply-template", json.dumps({"messages": message}).encode())
        + request("/v1/chat/completions/input_tokens", json.dumps({"messages": message}).encode()),
        "chat": request("/v1/chat/completions", json.dumps({"messages": message, "stream": True}).encode()) + health,
        "messages": request("/v1/messages", json.dumps({"messages": message, "max_tokens": 2}).encode())
        + request("/v1/messages/count_tokens", json.dumps({"messages": message}).encode()),
        "responses": request("/v1/responses", b'{"input":"a"}')
        + request("/v1/responses/resp_1")
        + request("/v1/responses/resp_1/cancel", b"{}"),
        "ollama": request("/api/tags")
        + request("/api/show", b'{"model":"x"}')
        + request("/api/chat", json.dumps({"messages": message}).encode()),
        "others": request("/detokenize", b'{"tokens":[1,2]}')
        + request("/v1/cache/explain", b'{"prompt":"a"}')
        + request("/v1/cache")
        + request("/stats")
        + request("/"),
        "close": request("/health", b"", None, "Connection: close") + health,
    }
    for i, (name, data) in enumerate(seeds.items()):
        write("fuzz_http_stream", name.replace(" ", "-"), bytes([i * 37 % 256]) + data)


def segment(flags, n_slots=2, page_tokens=4, page_bytes=64, data_offset=None, record_bytes=80, taken=2, tail=0):
    """The target makes checks, place, key and chain right, as flags say."""
    data = data_offset if data_offset is not None else 4096 + (n_slots * record_bytes + 63) // 64 * 64
    head = struct.pack(
        "<8sIIQQQQII",
        b"radishKV",
        1,
        page_tokens,
        7,
        page_bytes,
        (page_bytes + 63) // 64 * 64,
        data,
        n_slots,
        record_bytes,
    )
    out = (head + bytes(48)).ljust(4096, b"\0")
    for i in range(min(taken, 64)):
        record = struct.pack("<QQII", 1, 7, i, page_tokens) + bytes(48) + struct.pack("<4I", *range(4 * i, 4 * i + 4))
        out += record.ljust(record_bytes, b"\0")[:record_bytes]
    out = out.ljust(min(data, 60000), b"\0") + bytes(range(64)) * taken + bytes(tail)
    return bytes([flags]) + out


def segments():
    seeds = {
        "good": segment(0x3F),
        "as-it-is": segment(0),
        "many-slots": segment(0x3F, n_slots=40, taken=4),
        "huge-pages": segment(0x3F, page_bytes=1 << 40),
        "no-slots": segment(0x3F, n_slots=0),
        "most-slots": segment(0x3F, n_slots=65536),
        "data-inside": segment(0x3F, data_offset=64),
        "far-data": segment(0x3F, data_offset=1 << 62),
        "tokens": segment(0x3F, page_tokens=1 << 20),
        "short": segment(0x3F)[:3000],
        "cut": segment(0x3F)[:-70],
        "one-chain": segment(0x2F),
        "no-chain": segment(0x1F),
        "small-records": segment(0x3F, record_bytes=16),
        "tail": segment(0x3F, tail=500),
    }
    for name, data in seeds.items():
        write("fuzz_page_store", name, data)


def record(kind, *parts, salted=0):
    out = struct.pack("<IIQQ", kind, salted, 7 * salted, 8 * salted)
    for part in parts:
        out += struct.pack("<I", part) if isinstance(part, int) else struct.pack("<I", len(part)) + part
    return struct.pack("<H", len(out)) + out


def memories():
    ids = struct.pack("<8I", *range(1, 9))
    answer = record(2, 0, b"the text", b"the text\0", b"\0")
    calls = record(
        2, 3, b'<t>{"a":1}', b"\0", b"why\0", json.dumps([{"id": "c1", "name": "f", "arguments": "{}"}]).encode()
    )
    spelling = record(3, b'{"a":1,"b":[2,{"c":3}]}')
    seeds = {
        "sequence": record(1, ids),
        "answer": answer,
        "calls": calls,
        "spelling": spelling,
        "salted": record(3, b"[1]", salted=1),
        "all": record(1, ids) + answer + calls + spelling,
        "unknown": record(9, b"x"),
        "lengths": record(2, 1 << 31, b"a", b"b", b"c"),
        "empty": b"",
        "no-text": record(3, b""),
        "not-json": record(3, b"{{"),
        "cut": (record(1, ids) + answer)[:-5],
        "plain": b"\xff" + struct.pack("<QQ", 0x79726F6D656D6472, 1) + b"drec",
        "deep": record(3, b"[" * 3000 + b"]" * 3000),
    }
    for name, data in seeds.items():
        write("fuzz_memory_file", name, data)


streams()
segments()
memories()
