"""Engine: a loaded model, asked from any number of threads and event loops."""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Unpack

from radish import _errors
from radish._library import check, ffi, lib, text
from radish._stream import Pump, Request, Stream, check_process, submit
from radish._types import (
    Answer,
    ChatParams,
    Info,
    Message,
    Options,
    Params,
    Pooling,
    Tool,
)

POOLINGS = ("none", "model", "mean", "first", "last")
KINDS = ("none", "json_schema", "json_object", "regex", "choice", "gbnf", "ebnf", "structural_tag")
NO_LIMIT = 2**32 - 1
PLAIN = {
    "max_tokens",
    "min_tokens",
    "include_stop",
    "ignore_eos",
    "cache_prompt",
    "speculation",
    "idle",
    "truncate",
    "thinking_tokens",
}
TEXTS = {"cache_salt", "cache_name", "fairness_key", "label", "forced_tool"}
NUMBERS = {
    name
    for name, f in ffi.typeof("struct rd_sampling").fields
    if f.type.kind == "primitive" and name not in ("size", "has_seed", "seed") and not name.startswith("n_")
}


class Keep:
    """Memory that a struct of C points to, for as long as this object is there."""

    def __init__(self) -> None:
        self.all: list[Any] = []

    def __call__(self, p: Any) -> Any:
        self.all.append(p)
        return p

    def text(self, value: str) -> Any:
        data = value.encode()
        if b"\0" in data:
            raise _errors.InvalidArgument("a text has a zero byte in it")
        return self(ffi.new("char[]", data))

    def texts(self, values: Sequence[str]) -> Any:
        return self(ffi.new("char *[]", [self.text(v) for v in values]))

    def tokens(self, values: Sequence[int]) -> Any:
        return self(ffi.new("int32_t[]", list(values)))


def find_model(model: str | os.PathLike[str]) -> str:
    """A path, or the name of a model that `radish fetch` fetched."""
    path = os.fspath(model)
    if not os.path.exists(path) and os.sep not in path:
        folder = os.environ.get("RADISH_MODELS") or Path.home() / ".cache/radish/models"
        fetched = Path(folder, path + ".gguf")
        if fetched.is_file():
            return str(fetched)
    return path


def set_field(struct: Any, name: str, value: Any) -> None:
    """What C cannot hold is refused here, by name."""
    try:
        setattr(struct, name, value)
    except (OverflowError, TypeError) as e:
        raise _errors.InvalidArgument(f"{name}: {e}") from None


class Engine:
    """A model, its cache and its engine thread. Thread safe; requests of all threads run in one batch.

    A with block or close() ends what runs and frees everything; whatever is called after that raises Closed. So does what a
    child of fork() calls: threads do not come along. A child opens an engine of its own, or is started by spawn.
    """

    def __init__(self, model: str | os.PathLike[str], **options: Unpack[Options]) -> None:
        self._pointer: Any = None
        self._closed = False
        self._process = os.getpid()
        self._gate = threading.Condition(threading.Lock())
        self._n_using = 0
        self._requests: set[Request] = set()  # added to and taken from by single operations only: finalisers do it, too
        keep, o, out, err = (
            Keep(),
            ffi.new("struct rd_options *"),
            ffi.new("rd_engine **"),
            ffi.new("struct rd_error *"),
        )
        lib.rd_options_default(o)
        o.model = keep.text(find_model(model))
        known = {name: f.type.kind for name, f in ffi.typeof("struct rd_options").fields}
        for name, value in options.items():
            if name not in known or name in ("size", "model", "progress", "progress_user"):
                raise TypeError(f"Engine() has no option {name!r}")
            set_field(o, name, keep.text(value) if isinstance(value, str) else value)
        check(lib.rd_open(o, out, err), err)
        self._pointer = out[0]
        self._pump = Pump()

    # ---- life ----

    @contextlib.contextmanager
    def _using(self) -> Iterator[Any]:
        """The library's engine, which stays open meanwhile."""
        check_process(self._process)
        with self._gate:
            if self._closed:
                raise _errors.Closed("the engine was closed")
            self._n_using += 1
        try:
            yield self._pointer
        finally:
            with self._gate:
                self._n_using -= 1
                self._gate.notify_all()

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Ends every request (its reader is told Closed), waits for calls of other threads, frees the model."""
        if self._process != os.getpid():
            self._closed = True  # its parent's: no lock is taken, who holds it is not here
            self._pointer = None
            return
        with self._gate:
            if self._closed:
                return
            self._closed = True
            while self._n_using:
                self._gate.wait()
        for request in list(self._requests):
            request.closed_by_engine = True
            request.release()
        self._pump.stop()
        lib.rd_close(self._pointer)
        self._pointer = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_pointer", None) is not None:
            self.close()

    # ---- requests ----

    def _options(self, keep: Keep, params: Mapping[str, Any]) -> Any:
        q = keep(ffi.new("struct rd_request_options *"))
        lib.rd_request_options_default(q)
        q.max_tokens = NO_LIMIT
        for name, value in params.items():
            if value is None:
                continue
            if name in NUMBERS:
                set_field(q.sampling, name, value)
            elif name == "seed":
                q.sampling.has_seed = True
                set_field(q.sampling, name, value)
            elif name == "samplers":
                q.sampling.samplers = keep.text(value)
            elif name in PLAIN:
                set_field(q, name, value)
            elif name in TEXTS:
                set_field(q, name, keep.text(value))
            elif name == "stop":
                if isinstance(value, str):
                    value = [value]
                q.stop, q.n_stop = keep.texts(value), len(value)
            elif name == "stop_tokens":
                q.stop_tokens, q.n_stop_tokens = keep.tokens(value), len(value)
            elif name == "top_logprobs":
                q.logprobs = True
                set_field(q, "n_top_logprobs", value)
            elif name == "grammar_kind":
                if value not in KINDS:
                    raise _errors.InvalidArgument(f"grammar_kind: {value!r} is none of {', '.join(KINDS)}")
                q.grammar_kind = KINDS.index(value)
            elif name == "grammar":
                q.grammar, q.grammar_bytes = keep.text(value), len(value.encode())
            elif name == "adapters":
                uses = keep(ffi.new("struct rd_adapter_use[]", max(len(value), 1)))
                for use, (adapter, scale) in zip(uses, value.items(), strict=False):
                    use.name, use.scale = keep.text(adapter), float("nan") if scale is None else scale
                q.adapters, q.n_adapters = uses, len(value)
            elif name == "tools":
                q.tools_json = keep.text(json.dumps(list(value)))
                q.parse_tools = True
            elif name == "template_kwargs":
                q.kwargs_json = keep.text(json.dumps(dict(value)))
            else:
                raise TypeError(f"no parameter {name!r}")
        return q

    def _prompt(self, q: Any, keep: Keep, prompt: str | Sequence[int]) -> None:
        if isinstance(prompt, str):
            q.prompt, q.prompt_bytes = keep(ffi.new("char[]", prompt.encode())), len(prompt.encode())
        else:
            q.tokens, q.n_tokens = keep.tokens(prompt), len(prompt)

    def chat_stream(self, messages: Sequence[Message], **params: Unpack[ChatParams]) -> Stream:
        """The answer to a conversation, piece by piece: for, or async for."""
        keep = Keep()
        q = self._options(keep, params)
        q.messages_json = keep.text(json.dumps(list(messages)))
        q.parse_thinking = True
        return submit(self, q, keep)

    def complete_stream(self, prompt: str | Sequence[int], **params: Unpack[Params]) -> Stream:
        """What follows a text, or tokens, piece by piece."""
        keep = Keep()
        q = self._options(keep, params)
        self._prompt(q, keep, prompt)
        return submit(self, q, keep)

    def chat(self, messages: Sequence[Message], **params: Unpack[ChatParams]) -> Answer:
        with self.chat_stream(messages, **params) as s:
            return s.read()

    def complete(self, prompt: str | Sequence[int], **params: Unpack[Params]) -> Answer:
        with self.complete_stream(prompt, **params) as s:
            return s.read()

    async def achat(self, messages: Sequence[Message], **params: Unpack[ChatParams]) -> Answer:
        async with self.chat_stream(messages, **params) as s:
            return await s.aread()

    async def acomplete(self, prompt: str | Sequence[int], **params: Unpack[Params]) -> Answer:
        async with self.complete_stream(prompt, **params) as s:
            return await s.aread()

    # ---- adapters ----

    def load_adapter(self, name: str, path: str | os.PathLike[str], scale: float = 1) -> None:
        """A low-rank adapter (LoRA): a folder of PEFT's, or a GGUF file. Requests choose by their parameter adapters."""
        err = ffi.new("struct rd_error *")
        with self._using() as e:
            check(lib.rd_adapter_load(e, name.encode(), os.fspath(path).encode(), scale, err), err)

    def unload_adapter(self, name: str) -> None:
        err = ffi.new("struct rd_error *")
        with self._using() as e:
            check(lib.rd_adapter_unload(e, name.encode(), err), err)

    def adapters(self) -> list[str]:
        """The names of those that are loaded, in the order of loading."""
        with self._using() as e:
            n = lib.rd_adapters(e, ffi.NULL, 0)
            found = ffi.new("struct rd_adapter[]", max(n, 1))
            n = min(n, lib.rd_adapters(e, found, n))
            return [text(found[i].name) for i in range(n)]

    # ---- text and tokens ----

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        data = text.encode()
        out, n, err = ffi.new("int32_t **"), ffi.new("uint32_t *"), ffi.new("struct rd_error *")
        with self._using() as e:
            check(lib.rd_tokenize(e, data, len(data), add_special, parse_special, out, n, err), err)
        try:
            return list(ffi.unpack(out[0], n[0])) if n[0] else []
        finally:
            lib.rd_free(out[0])

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        ids = ffi.new("int32_t[]", list(tokens))
        out, n, err = ffi.new("char **"), ffi.new("size_t *"), ffi.new("struct rd_error *")
        with self._using() as e:
            check(lib.rd_detokenize(e, ids, len(tokens), special, out, n, err), err)
        return take_text(out[0], n[0])

    def token_bytes(self, token: int) -> bytes:
        """Of one token: may be part of a character."""
        n = ffi.new("size_t *")
        with self._using() as e:
            if not 0 <= token < self._info(e).n_vocab:
                raise _errors.InvalidArgument(f"token {token} is outside the vocabulary")
            p = lib.rd_token_bytes(e, token, n)
            return bytes(ffi.buffer(p, n[0])) if p else b""

    def apply_template(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The text that the model would see."""
        out, n, err = ffi.new("char **"), ffi.new("size_t *"), ffi.new("struct rd_error *")
        words = [ffi.NULL if v is None else json.dumps(v).encode() for v in (tools and list(tools), template_kwargs)]
        with self._using() as e:
            asked = json.dumps(list(messages)).encode()
            check(lib.rd_apply_template(e, asked, *words, lib.RD_PROMPT_AUTO, out, n, err), err)
        return take_text(out[0], n[0])

    # ---- vectors and probabilities ----

    def embed(self, text: str | Sequence[int], *, pooling: Pooling = "model") -> list[float]:
        """The vector of a text, of length 1."""
        return self.embed_all([text], pooling=pooling)[0]

    def embed_all(self, texts: Sequence[str | Sequence[int]], *, pooling: Pooling = "model") -> list[list[float]]:
        """Of several, computed together."""
        if pooling not in POOLINGS[1:]:
            raise _errors.InvalidArgument(f"pooling: {pooling!r} is none of {', '.join(POOLINGS[1:])}")
        with contextlib.ExitStack() as stack:
            streams = []
            for item in texts:
                keep = Keep()
                q = self._options(keep, {"max_tokens": 0})
                q.embed = POOLINGS.index(pooling)
                self._prompt(q, keep, item)
                streams.append(stack.enter_context(submit(self, q, keep)))
            return [s._vector() for s in streams]

    def classify(self, prompt: str | Sequence[int], labels: Sequence[str]) -> dict[str, float]:
        """The probability of each label as what follows: labels of one token each, which together make 1."""
        return self.classify_all([prompt], labels)[0]

    def classify_all(self, prompts: Sequence[str | Sequence[int]], labels: Sequence[str]) -> list[dict[str, float]]:
        """Of several prompts as one batch: a common beginning is computed once."""
        ids = []
        for label in labels:
            found = self.tokenize(label, add_special=False, parse_special=False)
            if len(found) != 1:
                raise _errors.InvalidArgument(f"label {label!r} has {len(found)} tokens, not one")
            ids.append(found[0])
        if not ids:
            raise _errors.InvalidArgument("no labels")
        keep, err = Keep(), ffi.new("struct rd_error *")
        wanted = keep.tokens(ids)
        items = ffi.new("struct rd_classify_item[]", len(prompts))
        for item, prompt in zip(items, prompts, strict=True):
            item.size = ffi.sizeof(item)
            tokens = self.tokenize(prompt) if isinstance(prompt, str) else prompt
            item.tokens, item.n = keep.tokens(tokens), len(tokens)
            item.labels, item.n_labels = wanted, len(ids)
            item.logprobs = keep(ffi.new("float[]", len(ids)))
        if len(prompts):
            with self._using() as e:
                check(lib.rd_classify_batch(e, items, len(prompts), err), err)
        return [normalised(labels, ffi.unpack(item.logprobs, len(ids))) for item in items]

    def score(self, tokens: Sequence[int]) -> list[float]:
        """The log probability of each token, given those before it; the first is 0."""
        n = len(tokens)
        if not n:
            return []
        out, err, ids = ffi.new("float[]", n), ffi.new("struct rd_error *"), ffi.new("int32_t[]", list(tokens))
        with self._using() as e:
            check(lib.rd_score(e, ids, n, out, err), err)
        return list(ffi.unpack(out, n))

    # ---- what is going on ----

    def _info(self, pointer: Any) -> Any:
        raw = sized("struct rd_info")
        lib.rd_get_info(pointer, raw)
        return raw

    @property
    def info(self) -> Info:
        with self._using() as e:
            raw = self._info(e)
        values: dict[str, Any] = {}
        for name in Info.__slots__:
            value = getattr(raw, name)
            values[name] = value if isinstance(value, int) else text(value)
        return Info(**values)

    def stats(self) -> dict[str, int | float | bool]:
        """struct rd_stats by the names of its fields: tokens computed and cached, pages by state, memory."""
        raw = sized("struct rd_stats")
        with self._using() as e:
            lib.rd_get_stats(e, raw)
        fields = ffi.typeof("struct rd_stats").fields
        return {name: getattr(raw, name) for name, f in fields if f.type.kind == "primitive" and name != "size"}

    def clear_cache(self) -> int:
        """Drops everything that no request uses; returns the pages that are free now."""
        with self._using() as e:
            return int(lib.rd_cache_clear(e))


def sized(struct: str) -> Any:
    """A struct for the library to fill, which it must know the length of."""
    out = ffi.new(struct + " *")
    out.size = ffi.sizeof(struct)
    return out


def take_text(p: Any, n: int) -> str:
    try:
        return str(bytes(ffi.buffer(p, n)).decode("utf-8", "replace"))
    finally:
        lib.rd_free(p)


def normalised(labels: Sequence[str], logprobs: Sequence[float]) -> dict[str, float]:
    """exp(logprob), made to sum to 1 over the labels."""
    top = max(logprobs)
    weights = [math.exp(p - top) for p in logprobs]
    return {label: w / sum(weights) for label, w in zip(labels, weights, strict=True)}
