"""radish: language models on your own machine. See docs/python.md.

import radish

with radish.Engine("model.gguf") as engine:
    print(engine.chat([{"role": "user", "content": "What is a radish?"}], max_tokens=64))
"""

from radish._engine import Engine
from radish._errors import (
    BadFormat,
    Cancelled,
    Closed,
    ContextExceeded,
    DeviceFailed,
    Error,
    InputOutput,
    InvalidArgument,
    LimitExceeded,
    NoMemory,
    NotFound,
    QueueFull,
    TemplateError,
    Unsupported,
)
from radish._library import ffi as _ffi
from radish._library import lib as _lib
from radish._library import text as _text
from radish._stream import Stream
from radish._types import Answer, Call, ChatParams, Info, Message, Options, Params, Piece, Point, Sampling, Tool, Usage

__version__ = _text(_lib.rd_version())
__all__ = [
    "Answer",
    "BadFormat",
    "Call",
    "Cancelled",
    "ChatParams",
    "Closed",
    "ContextExceeded",
    "DeviceFailed",
    "Engine",
    "Error",
    "Info",
    "InputOutput",
    "InvalidArgument",
    "LimitExceeded",
    "Message",
    "NoMemory",
    "NotFound",
    "Options",
    "Params",
    "Piece",
    "Point",
    "QueueFull",
    "Sampling",
    "Stream",
    "TemplateError",
    "Tool",
    "Unsupported",
    "Usage",
    "set_log_level",
]


def set_log_level(level: int) -> None:
    """What goes to stderr: 0 errors, 1 warnings (as it begins), 2 what happens, 3 everything."""
    _lib.rd_set_log(level, _ffi.NULL, _ffi.NULL)


set_log_level(1)
