"""libradish.so and its declarations. Calls through `lib` release the lock of the interpreter while they run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from radish import _errors
from radish._capi import ffi as _ffi

HOME = Path(__file__).resolve().parent
ffi: Any = _ffi
lib: Any = ffi.dlopen(os.environ.get("RADISH_LIBRARY") or str(HOME / "lib/libradish.so"))
libc: Any = ffi.dlopen(None)


def text(p: Any) -> str:
    """Of a char pointer or array; "" for NULL."""
    return ffi.string(p).decode("utf-8", "replace") if p else ""


def check(status: int, err: Any = None) -> None:
    """Raises what a status means; err: the struct rd_error beside it."""
    if status:
        said = text(err.text) if err is not None else ""
        raise _errors.make(text(lib.rd_status_name(status)), said or text(lib.rd_status_text(status)))
