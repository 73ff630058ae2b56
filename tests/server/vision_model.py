"""A tiny model that sees (tests/golden/vision), with the words that stand around its images, and pictures for it."""

import base64
import io
import json
import shutil
import struct
import zlib
from pathlib import Path

from radish_server import ROOT

AROUND = {
    "qwen2vl": {96: "<|image_pad|>", 97: "<|video_pad|>", 98: "<|vision_start|>", 99: "<|vision_end|>"},
    "guiactor": {
        96: "<|image_pad|>",
        98: "<|vision_start|>",
        99: "<|vision_end|>",
        104: "<|pointer_start|>",
        105: "<|pointer_pad|>",
        106: "<|pointer_end|>",
    },
    "qwen25vl": {96: "<|image_pad|>", 97: "<|video_pad|>", 98: "<|vision_start|>", 99: "<|vision_end|>"},
    "qwen3vl": {96: "<|image_pad|>", 97: "<|video_pad|>", 98: "<|vision_start|>", 99: "<|vision_end|>"},
    "gemma3": {96: "<image_soft_token>", 98: "<start_of_image>", 99: "<end_of_image>"},
}


TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{% endif %}{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_model(folder, family):
    """The directory of a model of this family: noise, but the structure of a real one."""
    to = Path(folder) / family
    shutil.copytree(ROOT / "tests/golden/vision" / family, to, ignore=shutil.ignore_patterns("*.bin", "*.gguf"))
    path = to / "tokenizer.json"
    t = json.loads(path.read_text())
    words = {i: w for w, i in t["model"]["vocab"].items()}
    special = AROUND[family] | {102: "<|im_start|>", 103: "<|im_end|>"}
    for i, word in (special | {100: "\u0120", 101: "\u010a"}).items():  # a space and a line's end, as bytes are spelled
        del t["model"]["vocab"][words[i]]
        t["model"]["vocab"][word] = i
        if i in special:
            t["added_tokens"].append({"id": i, "content": word, "special": True, "normalized": False})
    path.write_text(json.dumps(t))
    config = json.loads((to / "config.json").read_text())
    for part in (config, config.get("text_config", {})):
        if "max_position_embeddings" in part:
            part["max_position_embeddings"] = 4096
    (to / "config.json").write_text(json.dumps(config))
    (to / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}))
    return to


def make_pointing_model(folder):
    """A GUI-Actor whose template ends with <|pointer_start|>: whatever asks it, its answer begins with a pointer."""
    model = make_model(folder, "guiactor")
    config = json.loads((model / "tokenizer_config.json").read_text())
    config["chat_template"] += "<|pointer_start|>"
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    return model


def png_of_rows(width, height, rows, level=-1):
    """rows: of RGB, each behind a 0; level: zlib's."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(rows, level)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def png(width, height, pixel):
    """pixel(x, y) -> (r, g, b)"""
    rows = b"".join(b"\0" + b"".join(bytes(pixel(x, y)) for x in range(width)) for y in range(height))
    return png_of_rows(width, height, rows)


def picture(seed=0, width=64, height=48):
    return png(width, height, lambda x, y: ((x * 5 + seed * 40) % 256, (y * 7) % 256, (x + y + seed) % 256))


def b64(data):
    return base64.b64encode(data).decode()


def url(data, kind="png"):
    return f"data:image/{kind};base64,{b64(data)}"


def jpeg(data):
    """The same picture as JPEG, by a library that is there for the tests of pictures alone."""
    from PIL import Image

    out = io.BytesIO()
    Image.open(io.BytesIO(data)).convert("RGB").save(out, "JPEG", quality=90)
    return out.getvalue()
