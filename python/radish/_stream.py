"""A request that runs, and how Python waits for it: in a thread of its own, or in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import threading
import weakref
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Any

from radish import _errors
from radish._library import check, ffi, lib, libc, text
from radish._types import Answer, Call, Finish, Piece, Point, Usage

if TYPE_CHECKING:
    from radish._engine import Engine

WAIT_MS = 100  # Ctrl-C and close() are heard within this time
FINISH: tuple[Finish, ...] = ("stop", "length", "cancelled", "error")
MAX_AHEAD = (
    64  # pieces that wait for a reader of an event loop; beyond, the library's own ring fills and the request pauses
)


class Mark(enum.Enum):
    NOTHING = "nothing now"
    END = "that was all"


NOTHING, END = Mark.NOTHING, Mark.END


def check_process(process: int) -> None:
    """Before any lock: after fork() one may be held by a thread that is not here."""
    if process != os.getpid():
        raise _errors.Closed("the engine belongs to the process that opened it: fork() does not copy its threads")


class Request:
    """The library's request, released once, whoever asks: its stream, the stream's finaliser, or the engine.

    In a child of fork() it is nobody's: nothing is asked of the library, and its parent still has it.

    `poll` is held by whoever looks for an event, `state` for an instant by whoever wants it cancelled.
    """

    def __init__(self, pointer: Any, keep: Any) -> None:
        self.pointer, self.keep = pointer, keep
        self.process = os.getpid()
        self.poll, self.state = threading.Lock(), threading.Lock()
        self.event = ffi.new("struct rd_event *")
        self.closed_by_engine = False

    def cancel(self) -> None:
        if self.process != os.getpid():
            return
        with self.state:
            if self.pointer is not None:
                lib.rd_request_cancel(self.pointer)

    def release(self) -> None:
        if self.process != os.getpid():
            return
        self.cancel()  # whoever waits for an event gets one
        with self.poll:
            with self.state:
                pointer, self.pointer = self.pointer, None
            if pointer is not None:
                lib.rd_request_release(pointer)


class Stream:
    """The pieces of one answer: for, or async for. A with block, close(), or forgetting it ends the request.

    `answer` is there after the last piece. One stream may be handed from thread to thread; each piece goes to one of them.
    """

    def __init__(self, engine: Engine, request: Request) -> None:
        self._engine, self._request = engine, request
        self._ended = False
        self._error: BaseException | None = None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[Call] = []
        self._tokens: list[int] = []
        self._answer: Answer | None = None
        self._ahead: deque[Piece | Mark] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiter: asyncio.Future[None] | None = None

    # ---- reading ----

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Piece:
        if self._loop is not None:
            raise RuntimeError("this stream is read by an event loop")
        while True:
            piece = self._poll(WAIT_MS)
            if isinstance(piece, Piece):
                return piece
            if piece is END:
                self._finish()
                raise StopIteration

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Piece:
        loop = asyncio.get_running_loop()
        check_process(self._request.process)
        if self._loop is None:
            self._loop = loop
            self._engine._pump.add(self)
        elif self._loop is not loop:
            raise RuntimeError("this stream is read by another event loop")
        while True:
            if self._ahead:
                piece = self._ahead.popleft()
                if len(self._ahead) == MAX_AHEAD - 1:
                    self._engine._pump.wake()
                if isinstance(piece, Piece):
                    return piece
                self._ahead.append(END)
            if self._ahead or self._request.pointer is None:
                if not self._ended:
                    self._poll(0)  # released before anybody saw its end: the poll says by whom
                self._finish()
                raise StopAsyncIteration
            if self._waiter is not None:
                raise RuntimeError("another task waits for this stream")
            self._waiter = loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _poll(self, wait_ms: int) -> Piece | Mark:
        r = self._request
        check_process(r.process)
        with r.poll:
            while not self._ended:
                if r.pointer is None:
                    self._ended = True
                    if r.closed_by_engine:
                        self._error = _errors.Closed("the engine was closed")
                    break
                ev = r.event
                status = lib.rd_request_wait(r.pointer, wait_ms, ev) if wait_ms else lib.rd_request_next(r.pointer, ev)
                if status == lib.RD_E_AGAIN:
                    return NOTHING
                if status:
                    self._ended = True
                elif piece := self._take(ev):
                    return piece
            return END

    def _take(self, ev: Any) -> Piece | None:
        if ev.type == lib.RD_EVENT_STARTED:
            return None
        if ev.type == lib.RD_EVENT_ERROR:
            self._ended = True
            if ev.status == lib.RD_E_CANCELLED and self._request.closed_by_engine:  # while it was prepared
                self._error = _errors.Closed("the engine was closed")
            else:
                self._error = _errors.make(text(lib.rd_status_name(ev.status)), text(ev.message))
            return None
        content = ffi.unpack(ev.text, ev.text_bytes).decode() if ev.text_bytes else ""
        reasoning = ""
        for i in range(ev.n_deltas):
            d = ev.deltas[i]
            said = ffi.unpack(d.text, d.text_bytes).decode() if d.text_bytes else ""
            if d.type == lib.RD_DELTA_REASONING:
                reasoning += said
            elif d.type == lib.RD_DELTA_CALL_BEGIN:
                self._calls.append(Call(text(d.id), said))
            elif d.type == lib.RD_DELTA_CALL_ARGUMENTS:
                self._calls[d.index].arguments += said
            elif d.type == lib.RD_DELTA_CALL_END:
                self._calls[d.index].complete = bool(d.complete)
        self._text.append(content)
        self._reasoning.append(reasoning)
        if ev.type == lib.RD_EVENT_DONE:
            self._ended = True
            u = ev.usage
            usage = Usage(u.n_prompt, u.n_cached, u.n_generated, u.n_reasoning, u.ttft_ms)
            finish = FINISH[ev.finish]
            if finish == "cancelled":
                closed = self._request.closed_by_engine  # which ends it so, and may be heard before it has released it
                self._error = _errors.Closed("the engine was closed") if closed else _errors.Cancelled("cancelled")
            said, thought = "".join(self._text), "".join(self._reasoning)
            self._answer = Answer(said, thought, self._calls, finish, usage, self._tokens, self._points())
            return Piece(content, reasoning) if content or reasoning else None
        self._tokens.append(ev.token)
        top = tuple((ev.top[i].token, ev.top[i].logprob) for i in range(ev.n_top))
        return Piece(content, reasoning, ev.token, ev.logprob if top else None, top)

    def _points(self) -> list[Point]:
        n = ffi.new("uint32_t *")
        found = lib.rd_request_points(self._request.pointer, n)
        return [Point(p.x, p.y, p.score, p.pointer, p.image) for p in (found[i] for i in range(n[0]))]

    def _finish(self) -> None:
        self.close()
        error, self._error = self._error, None
        if error is not None:
            raise error

    # ---- its end ----

    @property
    def answer(self) -> Answer:
        """The whole answer, once every piece was read."""
        if self._answer is None:
            raise RuntimeError("the answer is not complete: read the stream to its end")
        return self._answer

    def read(self) -> Answer:
        """Reads what is left, and returns the whole answer."""
        for _ in self:
            pass
        return self.answer

    async def aread(self) -> Answer:
        async for _ in self:
            pass
        return self.answer

    def _vector(self) -> list[float]:
        """Of a request for one."""
        self._read_to_done()
        n = ffi.new("uint32_t *")
        with self._request.poll:
            found = lib.rd_request_embedding(self._request.pointer, n) if self._request.pointer else ffi.NULL
            if not found:
                raise _errors.Closed("the request was closed")
            return list(ffi.unpack(found, n[0]))

    def _read_to_done(self) -> None:
        while self._poll(WAIT_MS) is not END:
            pass
        if self._error is not None:
            self._finish()

    def cancel(self) -> None:
        """Stops it within a step. From any thread; whoever reads it is told Cancelled."""
        self._request.cancel()

    def close(self) -> None:
        """Ends the request; the cache keeps what was computed. Any number of times."""
        self._request.release()
        self._engine._requests.discard(self._request)  # last: until then the engine, when it closes, waits for us

    async def aclose(self) -> None:
        self.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_request"):
            self.close()

    # ---- for the pump: another thread ----

    def _fill(self) -> bool:
        """Takes what has come; True when the loop has something to do. It may take pieces away meanwhile."""
        has_some = False
        while len(self._ahead) < MAX_AHEAD:
            try:
                piece = self._poll(0)
            except Exception as e:  # no memory, say: it is this stream's end, the other streams' thread goes on
                self._ended, self._error, piece = True, e, END
            if piece is NOTHING:
                break
            self._ahead.append(piece)
            has_some = True
            if piece is END:
                break
        return has_some

    def _tell(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Pump:
    """One thread that waits for the requests of all event loops of an engine.

    Requests wake it through a semaphore of the C library: radish's engine thread never waits for Python. It starts with the
    first stream that an event loop reads.
    """

    def __init__(self) -> None:
        self.semaphore = ffi.new("char[64]")  # sem_t: 32 bytes on 64-bit Linux
        libc.sem_init(self.semaphore, 0, 0)
        self.post = ffi.cast("void (*)(void *)", ffi.addressof(libc, "sem_post"))
        self.lock = threading.Lock()
        self.streams: dict[int, weakref.ref[Stream]] = {}  # weak references: a stream that is forgotten ends
        self.thread: threading.Thread | None = None
        self.stopped = False

    def wake(self) -> None:
        libc.sem_post(self.semaphore)

    def add(self, stream: Stream) -> None:
        with self.lock:
            self.streams[id(stream)] = weakref.ref(stream)
            if self.thread is None:
                self.thread = threading.Thread(target=self.run, name="radish-pump", daemon=True)
                self.thread.start()
        self.wake()

    def run(self) -> None:
        while True:
            libc.sem_wait(self.semaphore)
            while libc.sem_trywait(self.semaphore) == 0:
                pass
            is_last = self.stopped
            with self.lock:
                all_of_them = list(self.streams.items())
            for key, reference in all_of_them:
                stream = reference()
                if stream is None or (stream._ahead and stream._ahead[-1] is END):
                    with self.lock:
                        if self.streams.get(key) is reference:
                            del self.streams[key]
                elif stream._fill() and stream._loop is not None:
                    with contextlib.suppress(RuntimeError):  # its loop is closed: nobody listens
                        stream._loop.call_soon_threadsafe(stream._tell)
                del stream
            if is_last:
                return

    def stop(self) -> None:
        self.stopped = True
        self.wake()
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join()


def submit(engine: Engine, options: Any, keep: Any) -> Stream:
    """Hands a filled struct rd_request_options to the engine."""
    err = ffi.new("struct rd_error *")
    out = ffi.new("rd_request **")
    with engine._using() as pointer:
        check(lib.rd_submit(pointer, options, engine._pump.post, engine._pump.semaphore, out, err), err)
        request = Request(out[0], keep)
        engine._requests.add(request)
    return Stream(engine, request)
