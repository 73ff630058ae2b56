#!/usr/bin/env python3
"""Makes corpus.bin and ids_*.bin: a seeded corpus of strings, and what llama.cpp makes of them.

    LLAMA_CPP_LIB_PATH=DIR_OF_LIBLLAMA PYTHONPATH=LLAMA_CPP_PYTHON python make_tokenizer.py DIR_WITH_GGUF_FILES

corpus.bin (all numbers are LEB128 varints):  n_fragments, (n_bytes, bytes)..., n_strings, (n_items, item...)...
    item: fragment * 2, or fragment * 2 + 1 and then a repeat count. A string is its fragments, one after the other.
ids_NAME.bin, little endian, per string:
    u32 n, u64 fnv  of the ids with add_special false, parse_special false
    u32 n, u64 fnv  of the ids with add_special true, parse_special true
    u64 fnv of the bytes of llama_detokenize(second ids, remove_special false, unparse_special true)
  for every FULL_EVERY-th string with at most 400 ids also the second ids, u32 each.
fnv: FNV-1a 64 over the bytes (ids as u32 little endian). Read by tests/model/test_tokenizer_golden.c.
"""

import ctypes
import random
import re
import struct
import sys

import llama_cpp

SEED, N_STRINGS, FULL_EVERY = 20261121, 2600, 16
MODELS = {
    "smollm2": "smollm2",
    "gemma3-270m": "gemma3-270m",
    "qwen2.5-coder-0.5b": "qwen2.5-coder",
    "qwen2.5-coder-1.5b": "qwen2.5-coder",
}

WORDS = """the of and to in is that it was for on are as with his they at be this from have or by one had not but what all were when we
there can an your which their said if do will each about how up out them then she many some so these would other into has more two like
him see time could no make than first been its who now people my made over did down only way find use may water long little very after
words called just where most know tokenization prefix radix Attention Kubernetes internationalization antidisestablishmentarianism
don't I'll we've they're it's can't he'd she'll I'm 'S 'T 'RE 'Ll 'ſ ''s '' 'x Straße naïve café œuvre ŝajnas Ærø İstanbul ıılı ǅungla
привет мир Москва тест Ελλάδα λόγος שלום עולם مرحبا بالعالم السَّلامُ عَلَيْكُمْ नमस्ते दुनिया ภาษาไทย 你好 世界 中文分词 漢字 かな カタカナ ひらがな
한국어 테스트 ქართული հայերեն አማርኛ தமிழ் বাংলা Việt ngữ ðɪs ɪz əˈfʌn ᚠᛇᚻ ℵ ℝ ﬁ ｆｕｌｌ ＷＩＤＴＨ １２３ ٣٤٥ ४५ ⅷ ½ ² ₃ ㊷ 〇 𝟘𝟙 𝔄𝔅 𐐀 𒀀 ꙮ""".split()
CODE = [
    "def f(x):\n    return x\n",
    "for (int i = 0; i < n; i++) {\n",
    "\t\tif (!ptr) goto fail;\n",
    "#include <stdio.h>\n",
    "}\n",
    "};\n\n",
    "SELECT * FROM t WHERE id=42;",
    "x += 1  # inc",
    "/* c */",
    "// c++\r\n",
    "a->b.c[0]",
    "std::vector<std::string>",
    "0xDEADBEEF",
    "1_000_000",
    "3.14159e-10f",
    "\\n\\t\\0",
    '"quoted"',
    "'c'",
    "`tick`",
    "${var}",
    "https://example.com/a?b=c&d=%20",
    "user@host.org",
    '<div class="x">',
    "</div>",
    "&amp;",
    "{{ x }}",
    "{% if y %}",
    "!=",
    "===",
    "=>",
    "<<=",
    "...",
    "__init__",
    "camelCaseName",
    "snake_case",
    "SCREAMING_CASE",
    "v1.2.3-rc4",
    "2024-01-31T23:59:59Z",
    "```python\n",
    "- [ ] item\n",
    "| a | b |\n|---|---|\n",
    "\\begin{equation}",
]
EMOJI = [
    "😀",
    "👨‍👩‍👧‍👦",
    "👩🏽‍🚀",
    "🏳️‍🌈",
    "🇩🇪",
    "🇯🇵🇺",
    "👍🏿",
    "❤️",
    "☎︎",
    "1️⃣",
    "🧑🏻‍❤️‍💋‍🧑🏿",
    "🫠",
    "🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "‍",
    "️",
    "🤷‍♀️",
]
MARKS = [
    "e\u0301",
    "a\u0308\u0304",
    "\u0301",
    "n\u0303o",
    "Z\u0351\u036b\u0343",
    "\u20dd",
    "\u0e31",
    "\u093f",
    "\u064b",
    "\ufe0f",
    "q\u0307\u0323",
    "\u1ab0",
    "\u3099",
    "o\u031b\u0323",
    "\u05b0",
]
CONTROL = [
    "\x00",
    "\x01",
    "\x07",
    "\x08",
    "\x0b",
    "\x0c",
    "\x1b[31m",
    "\x1f",
    "\x7f",
    "\x85",
    "\u200b",
    "\u200e",
    "\u202e",
    "\u2028",
    "\u2029",
    "\ufeff",
    "\ue000",
    "\ufffd",
    "\ufffe",
    "\U0010ffff",
    "\U000e0001",
    "\u00ad",
    "\u2060",
    "\u180e",
    "\u0378",
]
SPACES = [
    " ",
    "  ",
    "    ",
    "\t",
    "\n",
    "\r\n",
    "\n\n",
    "\r",
    " \n",
    "\n ",
    "\u00a0",
    "\u3000",
    "\u2003",
    "\u1680",
    " \t ",
    "\u202f",
    "\u2009 ",
]
DIGITS = [
    "0",
    "7",
    "42",
    "007",
    "123",
    "1234",
    "99999",
    "31415926535897932384626",
    "1,234.56",
    "-1",
    "+49",
    "1/2",
    "5%",
    "$9.99",
    "€10",
    "10k",
]
SPECIAL = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|im_start|>user\n",
    "<start_of_turn>",
    "<end_of_turn>",
    "<bos>",
    "<eos>",
    "<pad>",
    "<unk>",
    "<s>",
    "</s>",
    "<mask>",
    "[@BOS@]",
    "<unused7>",
    "<0x0A>",
    "<0xFF>",
    "<h1>",
    "</h1>",
    "<b>",
    "<table>",
    "<file_sep>",
    "<repo_name>",
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_call>",
    "</tool_call>",
    "<|box_start|>",
    "<|vision_pad|>",
    "<|im_start",
    "im_end|>",
    "<|",
    "|>",
    "▁",
    "▁▁",
    "▁▁▁▁▁",
    "Ġ",
    "Ċ",
    "<jupyter_code>",
    "<empty_output>",
    "<gh_stars>",
    "<issue_start>",
    "<|object_ref_end|>",
    "<start_of_image>",
    "[multimodal]",
    "<2mass>",
]
INVALID = [
    b"\xff",
    b"\xfe",
    b"\x80",
    b"\xc3",
    b"\xe2\x82",
    b"\xf0\x9f\x98",
    b"\xc0\x80",
    b"\xc1\xbf",
    b"\xed\xa0\x80",
    b"\xe0\x80\xaf",
    b"\xf0\x80\x80\xaf",
    b"\xf8\x88\x80\x80\x80",
    b"\xbf\xbf",
    b"\xed\xbf\xbf",
    b"\xc3(",
    b"\xe2\x28\xa1",
    b"\xf4\x8f\xbf",
]
# Above U+10FFFF in four bytes llama.cpp throws through its C interface: such strings cannot be golden.
TOO_BIG = re.compile(rb"[\xf4][\x90-\xbf][\x80-\xbf][\x80-\xbf]|[\xf5-\xf7][\x80-\xbf]{3}")


class Corpus:
    def __init__(self):
        self.fragments, self.index, self.strings = [], {}, []

    def add(self, items):
        """items: (bytes or str, repeat)."""
        recipe, text = [], b""
        for part, repeat in items:
            part = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
            if part not in self.index:
                self.index[part] = len(self.fragments)
                self.fragments.append(part)
            recipe.append((self.index[part], repeat))
            text += part * repeat
        if not TOO_BIG.search(text):
            self.strings.append((recipe, text))

    def write(self, path):
        out = bytearray()

        def varint(v):
            while v >= 0x80:
                out.append(v & 0x7F | 0x80)
                v >>= 7
            out.append(v)

        varint(len(self.fragments))
        for f in self.fragments:
            varint(len(f))
            out.extend(f)
        varint(len(self.strings))
        for recipe, _ in self.strings:
            varint(len(recipe))
            for fragment, repeat in recipe:
                varint(fragment * 2 + (repeat != 1))
                if repeat != 1:
                    varint(repeat)
        open(path, "wb").write(out)


def make_corpus():
    rng, c = random.Random(SEED), Corpus()
    groups = [WORDS, CODE, EMOJI, MARKS, CONTROL, SPACES, DIGITS, SPECIAL, INVALID]
    c.add([])
    for group in groups:  # everything alone, and after a space
        for part in group:
            c.add([(part, 1)])
            c.add([(" ", 1), (part, 1)])
    for part in [
        " ",
        "\n",
        "\t",
        "\r\n",
        "0",
        "9",
        "a",
        "A",
        "=",
        "-",
        "é",
        "\u0301",
        "中",
        "😀",
        "▁",
        "\u00a0",
        " \n",
        "ab",
        "'s",
        "<b>",
    ]:
        for repeat in (2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 100, 1000, 5000):
            c.add([(part, repeat)])
            c.add([("x", 1), (part, repeat), ("y", 1)])
    for _ in range(14):  # about 20 KB of prose, code, everything
        kinds = rng.choice([[WORDS], [WORDS, CODE, DIGITS], groups[:-1], [WORDS, EMOJI, MARKS]])
        items, n = [], 0
        while n < 20000:
            part = rng.choice(rng.choice(kinds))
            items += [(part, 1), (rng.choice(SPACES[:1] * 12 + SPACES), 1)]
            n += len(part if isinstance(part, bytes) else part.encode()) + 1
        c.add(items)
    while len(c.strings) < N_STRINGS:
        kinds = rng.choice(
            [
                groups,
                [WORDS],
                [CODE, SPACES],
                [EMOJI, MARKS, WORDS],
                [CONTROL, INVALID, WORDS],
                [SPECIAL, WORDS, SPACES],
                [DIGITS, SPACES, WORDS],
            ]
        )
        items = []
        for _ in range(rng.randint(1, rng.choice([4, 12, 40]))):
            items.append((rng.choice(rng.choice(kinds)), rng.choice([1, 1, 1, 1, 1, 1, 2, 3, rng.randint(1, 40)])))
            if rng.random() < 0.5:
                items.append((" ", 1))
        if rng.random() < 0.15:
            items.append((bytes(rng.randrange(256) for _ in range(rng.randint(1, 24))), 1))
        if rng.random() < 0.15:  # any code points
            items.append(
                (
                    "".join(
                        chr(rng.choice([rng.randrange(0x20, 0xD7FF), rng.randrange(0xE000, 0x3134F)]))
                        for _ in range(rng.randint(1, 12))
                    ),
                    1,
                )
            )
        c.add(items)
    return c


def fnv(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


def tokenize(vocab, text, add_special, parse_special):
    ids = (llama_cpp.llama_token * (len(text) * 2 + 16))()
    n = llama_cpp.llama_tokenize(vocab, text, len(text), ids, len(ids), add_special, parse_special)
    assert n >= 0, n
    return ids, n


def main():
    corpus = make_corpus()
    corpus.write("corpus.bin")
    print(len(corpus.strings), "strings", sum(len(t) for _, t in corpus.strings), "bytes")
    written = {}
    quiet = llama_cpp.llama_log_callback(lambda level, text, user: None)  # kept alive: C calls it
    llama_cpp.llama_log_set(quiet, None)
    llama_cpp.llama_backend_init()
    for model_name, name in MODELS.items():
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        model = llama_cpp.llama_model_load_from_file(f"{sys.argv[1]}/{model_name}.gguf".encode(), params)
        vocab = llama_cpp.llama_model_get_vocab(model)
        out = bytearray()
        for i, (_, text) in enumerate(corpus.strings):
            for flag in (False, True):
                ids, n = tokenize(vocab, text, flag, flag)
                out += struct.pack("<IQ", n, fnv(struct.pack(f"<{n}I", *ids[:n])))
            buf = ctypes.create_string_buffer(len(text) * 4 + 4096)
            n_text = llama_cpp.llama_detokenize(vocab, ids, n, buf, len(buf), False, True)
            assert n_text >= 0
            out += struct.pack("<Q", fnv(buf.raw[:n_text]))
            if i % FULL_EVERY == 0 and n <= 400:
                out += struct.pack(f"<{n}I", *ids[:n])
        assert written.setdefault(name, out) == out, "the two Qwen files differ"
        open(f"ids_{name}.bin", "wb").write(out)
        print(model_name, len(out), "bytes")


main()
