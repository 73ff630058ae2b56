"""Radish's grammars, xgrammar's and llguidance's behind one face: compile a JSON schema, follow tokens, fill masks.

All hold a text to the spelling of json.dumps (", " and ": "), to the standard's meaning of what a schema leaves open
(xgrammar: strict_mode off), and compile in one thread. The packages are in a virtual environment of their own (--venv,
default ~/.cache/radish/xgr), made at the first run; torch and transformers are not installed: xgrammar imports
both and uses neither to compile or to fill a mask, so modules that are empty stand in their place.
"""

import ctypes as c
import importlib
import json
import os
import signal
import struct
import subprocess
import sys
import time
import types
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIRST = ["xgrammar"]  # without what it names
PACKAGES = [
    "apache-tvm-ffi",
    "pydantic",
    "numpy",
    "typing-extensions",
    "llguidance",
    "jsonschema[format]",
    "ocpp",
    "openai",
]
PACKAGES += ["anthropic", "mcp"]  # their schemas
ADD = [", ", ": "]


def enter(folder):
    """Goes on in the environment's Python; installs what it lacks."""
    python = folder / "bin/python"
    if Path(sys.prefix) == folder.resolve():
        return
    mark = folder / "radish-packages"
    if not mark.is_file() or mark.read_text() != " ".join(FIRST + PACKAGES):
        if not python.is_file():
            venv.create(folder, with_pip=True)
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", *FIRST], check=True)
        subprocess.run([*pip, *PACKAGES], check=True)
        mark.write_text(" ".join(FIRST + PACKAGES))
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    os.execv(python, [python, *sys.argv])


def version(package):
    return importlib.import_module("importlib.metadata").version(package)


# --- vocabularies -------------------------------------------------------------------------------------------------------


class Vocab:
    """tokens: bytes of each; special: ids that only a grammar's own names mean; encode: bytes to ids."""

    def __init__(self, tokens, special, end, encode=list):
        self.tokens, self.special, self.end, self.encode = tokens, set(special), end, encode
        self.n_words = (len(tokens) + 31) // 32

    @staticmethod
    def of_bytes():
        """Every byte a token of its own, and an end."""
        return Vocab([bytes([i]) for i in range(256)] + [b""], [256], 256)

    @staticmethod
    def of_gguf(path, encode):
        data = gguf_values(path)
        undo = {char: byte for byte, char in byte_chars().items()}
        kinds = data["tokenizer.ggml.token_type"]
        tokens = []
        for text, kind in zip(data["tokenizer.ggml.tokens"], kinds):
            plain = kind != 1  # a normal token is written in characters that stand for bytes
            tokens.append(text.encode() if plain else bytes(undo[ch] for ch in text))
        special = [i for i, kind in enumerate(kinds) if kind not in (1, 4, 6)]
        end = data["tokenizer.ggml.eos_token_id"]
        for i in special:
            tokens[i] = b""
        return Vocab(tokens, special, end, encode)


def byte_chars():
    """byte -> character, as byte-level vocabularies write them (GPT-2)."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in kept]
    return {**{b: chr(b) for b in kept}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def gguf_values(path):
    formats = ["<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?", None, None, "<Q", "<q", "<d"]
    with open(path, "rb") as f:

        def of(fmt):
            return struct.unpack(fmt, f.read(struct.calcsize(fmt)))[0]

        def value(kind):
            if kind == 8:
                return f.read(of("<Q")).decode()
            if kind == 9:
                inner, n = of("<I"), of("<Q")
                return [value(inner) for _ in range(n)]
            return of(formats[kind])

        assert f.read(4) == b"GGUF" and of("<I") >= 2
        _, n = of("<Q"), of("<Q")
        out = {}
        for _ in range(n):
            key = value(8)
            out[key] = value(of("<I"))
        return out


# --- engines ------------------------------------------------------------------------------------------------------------


class Refused(Exception):
    """A schema that an engine does not take; its words."""


class Radish:
    name = "radish"

    def __init__(self, vocab, lib):
        self.lib, self.vocab = c.CDLL(str(lib)), vocab
        for name in ("bench_vocab", "bench_compile", "bench_matcher"):
            getattr(self.lib, name).restype = c.c_void_p
        n = len(vocab.tokens)
        offsets = (c.c_uint64 * (n + 1))()
        special = (c.c_uint8 * n)()
        for i, t in enumerate(vocab.tokens):
            offsets[i + 1] = offsets[i] + len(t)
            special[i] = i in vocab.special
        self.of = c.c_void_p(self.lib.bench_vocab(n, b"".join(vocab.tokens), offsets, special))
        assert self.of.value
        self.why = c.create_string_buffer(2000)

    def version(self):
        r = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
        return r.stdout.strip()

    def compile(self, schema):
        g = self.lib.bench_compile(self.of, schema, c.c_size_t(len(schema)), self.why, c.c_size_t(2000))
        if not g:
            raise Refused(self.why.value.decode(errors="replace"))
        return c.c_void_p(g)

    def ends_in(self, schema, seconds):
        return True

    def free(self, g):
        self.lib.bench_grammar_free(g)

    def start(self, g, n_tokens):
        """(mask(), accept(token) -> bool, can_end() -> bool, the words of the mask, done())"""
        m = c.c_void_p(self.lib.bench_matcher(g, n_tokens + 1))
        words = (c.c_uint32 * self.vocab.n_words)()
        n = c.c_size_t(self.vocab.n_words)
        mask, accept, end = self.lib.bench_mask, self.lib.bench_accept, self.lib.bench_can_end
        return (
            lambda: mask(m, words, n),
            lambda t: accept(m, t) == 0,
            lambda: bool(end(m)),
            words,
            lambda: self.lib.bench_matcher_free(m),
        )


class Stand(types.ModuleType):
    """A module that has every name: classes where it has a capital, else a text."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {}) if name[0].isupper() else name


class XGrammar:
    name = "xgrammar"

    def __init__(self, vocab, lib=None):
        import numpy
        import tvm_ffi

        for name in ("torch", "transformers"):
            sys.modules.setdefault(name, Stand(name))
        sys.modules["torch"].tensor = lambda *a, **k: None
        import xgrammar

        self.np, self.ffi, self.x, self.vocab = numpy, tvm_ffi, xgrammar, vocab
        info = xgrammar.TokenizerInfo(
            vocab.tokens, vocab_type=xgrammar.VocabType.RAW, vocab_size=len(vocab.tokens), stop_token_ids=[vocab.end]
        )
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def version(self):
        return version("xgrammar")

    def compile(self, schema):
        try:
            return self.made(schema)
        except Exception as e:
            raise Refused(str(e)) from None

    def made(self, schema):
        return self.compiler.compile_json_schema(
            schema.decode(), any_whitespace=False, separators=tuple(ADD), strict_mode=False
        )

    def ends_in(self, schema, seconds):
        """Whether compiling ends in time and without a crash: tried in a child, for some schemas take it minutes."""
        child = os.fork()
        if not child:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            try:
                self.made(schema)
            except Exception:
                pass
            os._exit(0)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return status == 0
            time.sleep(0.002)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return False

    def free(self, g):
        pass

    def start(self, g, n_tokens):
        m = self.x.GrammarMatcher(g, terminate_without_stop_token=False)
        words = self.np.zeros((1, self.vocab.n_words), self.np.int32)
        tensor = self.ffi.from_dlpack(words)
        fill, accept = m._handle.fill_next_token_bitmask, m._handle.accept_token
        return (
            lambda: fill(tensor, 0, False),
            lambda t: accept(t, False),
            m.is_completed,
            words[0],
            lambda: None,
        )


class LLGuidance:
    name = "llguidance"

    def __init__(self, vocab, lib=None):
        import llguidance
        import numpy

        self.l, self.np, self.vocab = llguidance, numpy, vocab

        class Tokens:
            eos_token_id, bos_token_id = vocab.end, None
            tokens = [t or b"\xff<%d>" % i for i, t in enumerate(vocab.tokens)]
            special_token_ids = sorted(vocab.special)

            def __call__(self, s):
                return vocab.encode(s.encode() if isinstance(s, str) else s)

        wrapper = llguidance.TokenizerWrapper(Tokens())
        self.tokenizer = llguidance.LLTokenizer(wrapper, slices=llguidance.LLTokenizer.json_slices())

    def version(self):
        return version("llguidance")

    def ends_in(self, schema, seconds):
        return True

    def compile(self, schema):
        options = {"whitespace_flexible": False, "item_separator": ADD[0], "key_separator": ADD[1]}
        try:
            text = self.l.LLMatcher.grammar_from_json_schema(schema.decode(), overrides=options)
            m = self.l.LLMatcher(self.tokenizer, text, log_level=0)
        except Exception as e:
            raise Refused(str(e)) from None
        if m.is_error():
            raise Refused(m.get_error())
        return m

    def free(self, g):
        pass

    def start(self, g, n_tokens):
        m = g.deep_copy()
        words = self.np.zeros((1, self.vocab.n_words), self.np.int32)
        fill, at, n = m.unsafe_compute_mask_ptr, words.ctypes.data, words.nbytes
        return (lambda: fill(at, n), m.consume_token, m.is_accepting, words[0], lambda: None)


ENGINES = {e.name: e for e in (Radish, XGrammar, LLGuidance)}


def accepts(engine, g, tokens):
    """Whether the tokens are a whole text."""
    mask, accept, can_end, words, done = engine.start(g, len(tokens))
    try:
        return all(accept(t) for t in tokens) and can_end()
    finally:
        done()


def compact(schema):
    return json.dumps(schema, ensure_ascii=False).encode()
