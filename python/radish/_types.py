"""What goes in and comes out: parameters, pieces of an answer, answers, facts about a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

Message = Mapping[str, Any]
Tool = Mapping[str, Any]
Finish = Literal["stop", "length", "cancelled", "error"]
GrammarKind = Literal["none", "json_schema", "json_object", "regex", "choice", "gbnf", "ebnf", "structural_tag"]
Pooling = Literal["model", "mean", "first", "last"]


class Sampling(TypedDict, total=False):
    """How the next token is chosen, with the defaults of include/radish/sampling.h."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    repeat_last_n: int
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    dynatemp_range: float
    dynatemp_exponent: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_last_n: int
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    seed: int
    samplers: str


class Params(Sampling, total=False):
    """Of one request."""

    max_tokens: int
    min_tokens: int
    stop: Sequence[str]
    stop_tokens: Sequence[int]
    include_stop: bool
    ignore_eos: bool
    cache_prompt: bool
    speculation: bool
    idle: bool
    truncate: bool
    adapters: Mapping[str, float | None]
    """Names of Engine.load_adapter, and how much of each; None: as it was loaded. {}: none."""
    cache_salt: str
    cache_name: str
    fairness_key: str
    label: str
    top_logprobs: int
    """0 .. 20: Piece.logprob, and this many alternatives in Piece.top."""
    grammar_kind: GrammarKind
    grammar: str


class ChatParams(Params, total=False):
    tools: Sequence[Tool]
    template_kwargs: Mapping[str, Any]
    forced_tool: str
    thinking_tokens: int


class Options(TypedDict, total=False):
    """Of Engine(): fields of struct rd_options by their names."""

    model_id: str
    device: str
    n_threads: int
    n_ctx: int
    kv_bytes: int
    kv_tokens: int
    page_tokens: int
    kv_type: str
    max_running: int
    max_queue: int
    max_chunk: int
    draft_model: str
    mmproj: str
    image_pan_and_scan: bool
    no_speculation: bool
    cache_ttl_s: int
    chat_template_file: str
    tool_parser: str
    packed_dir: str
    cache_dir: str
    cache_disk_bytes: int
    context_shift: bool
    thinking: Literal["on", "off"]
    """Of conversations that say nothing about it (template_kwargs); else as the template does."""


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    cached_tokens: int
    """Of prompt_tokens: not computed, they were in the cache."""
    generated_tokens: int
    reasoning_tokens: int
    ttft_ms: float


@dataclass(slots=True)
class Call:
    """A tool that the model wants called."""

    id: str
    name: str
    arguments: str = ""
    """The text of a JSON object."""
    complete: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """One step of an answer. `text` is content, `reasoning` is thinking; either may be empty."""

    text: str
    reasoning: str = ""
    token: int | None = None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Point:
    """Where an answer's pointer looks: struct rd_point. x and y are 0 to 1 of the image, from its upper left corner."""

    x: float
    y: float
    score: float
    pointer: int
    image: int


@dataclass(slots=True)
class Answer:
    text: str
    reasoning: str
    calls: list[Call]
    finish: Finish
    usage: Usage
    tokens: list[int] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)

    def __str__(self) -> str:
        return self.text

    def message(self) -> dict[str, Any]:
        """As the next request's messages have it."""
        m: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.calls:
            m["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in self.calls
            ]
        return m


@dataclass(frozen=True, slots=True)
class Info:
    """struct rd_info, the part of it that programs ask for."""

    model_id: str
    arch: str
    name: str
    backend: str
    quantization: str
    n_vocab: int
    n_ctx: int
    n_ctx_train: int
    n_layers: int
    hidden: int
    n_params: int
    bos: int
    eos: int
