"""What can go wrong: one exception for each status of the library that a caller may meet."""

from __future__ import annotations


class Error(Exception):
    """Its text says what was found and what was wanted; `status` is the library's name for it ("RD_E_FULL")."""

    status = "RD_E_INTERNAL"

    def __init__(self, text: str, status: str | None = None) -> None:
        super().__init__(text)
        if status:
            self.status = status


class InvalidArgument(Error, ValueError):
    status = "RD_E_INVALID"


class NoMemory(Error, MemoryError):
    status = "RD_E_NOMEM"


class InputOutput(Error, OSError):
    status = "RD_E_IO"


class BadFormat(Error):
    """A file, or data in it, that is not what it says it is."""

    status = "RD_E_FORMAT"


class Unsupported(Error):
    status = "RD_E_UNSUPPORTED"


class NotFound(Error, LookupError):
    status = "RD_E_NOT_FOUND"


class QueueFull(Error):
    """Too many requests wait: try again later."""

    status = "RD_E_FULL"


class ContextExceeded(Error):
    """The prompt is longer than the context."""

    status = "RD_E_CONTEXT"


class LimitExceeded(Error):
    status = "RD_E_LIMIT"


class TemplateError(Error):
    """The chat template does not render these messages."""

    status = "RD_E_TEMPLATE"


class Cancelled(Error):
    """Something else ended the request: Engine.close(), or whoever cancelled it."""

    status = "RD_E_CANCELLED"


class DeviceFailed(Error):
    status = "RD_E_DEVICE"


class Closed(Error):
    """The engine or the stream was used after it was closed."""

    status = "RD_E_CLOSED"


BY_STATUS: dict[str, type[Error]] = {
    kind.status: kind
    for kind in (
        InvalidArgument,
        NoMemory,
        InputOutput,
        BadFormat,
        Unsupported,
        NotFound,
        QueueFull,
        ContextExceeded,
        LimitExceeded,
        TemplateError,
        Cancelled,
        DeviceFailed,
        Closed,
    )
}


def make(status: str, text: str) -> Error:
    return BY_STATUS.get(status, Error)(text, status)
