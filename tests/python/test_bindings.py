"""The Python package as its users have it: installed, asked from threads and event loops, left in the middle, closed.

tests/packages/test_wheel.py runs this in an environment that holds the wheel and pytest alone. RADISH_MODEL: smollm2.gguf;
RADISH_POINTING: the folder of a tiny model that points, with screen.png.
"""

import asyncio
import base64
import contextlib
import gc
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import radish
from radish import _engine, _stream, _types
from radish._library import ffi, lib

MODEL = os.environ["RADISH_MODEL"]
HI = [{"role": "user", "content": "Hi"}]
LONG = {"max_tokens": 400, "ignore_eos": True}
OPTIONS = {"n_threads": 2, "n_ctx": 1024, "kv_tokens": 8192, "packed_dir": os.environ["RADISH_PACKED"]}


@pytest.fixture(scope="module")
def engine():
    with radish.Engine(MODEL, **OPTIONS) as e:
        yield e


@pytest.fixture
def own():
    with radish.Engine(MODEL, **OPTIONS) as e:
        yield e


def idle(engine):
    """Nothing runs, nothing is locked: what was left in the middle has ended."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        s = engine.stats()
        assert "size" not in s
        if not any(s[k] for k in ("n_preparing", "n_queued", "n_waiting", "n_prefill", "n_decode", "pages_locked")):
            return s
        time.sleep(0.01)
    raise AssertionError(s)


# ---- names ----


def test_the_parameters_that_are_typed_are_those_of_the_headers():
    sampling = {n for n, f in ffi.typeof("struct rd_sampling").fields if f.type.kind == "primitive"}
    sampling -= {"size", "has_seed"} | {n for n in sampling if n.startswith("n_")}
    assert set(_types.Sampling.__annotations__) == sampling | {"samplers"}
    options = dict(ffi.typeof("struct rd_options").fields)
    assert set(_types.Options.__annotations__) <= set(options)
    kinds = ffi.typeof("enum rd_grammar_kind").elements
    names = {"RD_GRAMMAR_TAGS": "structural_tag"}
    assert [names.get(v, v.removeprefix("RD_GRAMMAR_").lower()) for _, v in sorted(kinds.items())][
        : len(_engine.KINDS)
    ] == list(_engine.KINDS)
    poolings = [v.removeprefix("RD_POOL_").lower() for _, v in sorted(ffi.typeof("enum rd_pooling").elements.items())]
    assert tuple(poolings) == _engine.POOLINGS


def test_every_typed_parameter_is_taken(engine):
    some = {
        "tools": [],
        "template_kwargs": {},
        "adapters": {},
        "grammar_kind": "none",
        "grammar": "",
        "stop": ["x"],
        "stop_tokens": [1],
    }
    o = ffi.new("struct rd_request_options *")
    lib.rd_request_options_default(o)
    every = (
        set(_types.ChatParams.__annotations__)
        | set(_types.Params.__annotations__)
        | set(_types.Sampling.__annotations__)
    )
    for name in every:
        value = some.get(name)
        if value is None:
            value = "a" if name in _engine.TEXTS | {"samplers"} else 1
        assert engine._options(_engine.Keep(), {name: value})
    with pytest.raises(TypeError, match="temprature"):
        engine.chat(HI, temprature=1)
    with pytest.raises(TypeError, match="n_thread"):
        radish.Engine(MODEL, n_thread=1)


def test_thinking_is_chosen_for_all_conversations_of_an_engine(tmp_path):
    (tmp_path / "t.jinja").write_text(
        "{% if enable_thinking is defined %}{{ enable_thinking }}{% else %}unsaid{% endif %}"
    )
    for options, wanted in (({}, "unsaid"), ({"thinking": "on"}, "True"), ({"thinking": "off"}, "False")):
        with radish.Engine(MODEL, **OPTIONS, chat_template_file=str(tmp_path / "t.jinja"), **options) as e:
            assert e.apply_template(HI) == wanted
            assert e.apply_template(HI, template_kwargs={"enable_thinking": False}) == "False"
    with pytest.raises(ValueError, match="thinking"):
        radish.Engine(MODEL, **OPTIONS, thinking="maybe")


# ---- answers ----


def test_a_conversation_goes_on_from_the_cache(own):
    talk = [{"role": "user", "content": "My name is Ada."}]
    first = own.chat(talk, temperature=0, max_tokens=20)
    assert first.usage.cached_tokens == 0 and first.usage.prompt_tokens > 5
    assert len(first.tokens) == first.usage.generated_tokens and first.text
    talk += [first.message(), {"role": "user", "content": "What is my name?"}]
    second = own.chat(talk, temperature=0, max_tokens=20)
    assert second.usage.cached_tokens > first.usage.prompt_tokens
    assert own.chat(talk, temperature=0, max_tokens=20).text == second.text


def test_pieces_make_the_answer(engine):
    with engine.chat_stream(HI, temperature=0, max_tokens=16, top_logprobs=3) as s:
        with pytest.raises(RuntimeError, match="not complete"):
            _ = s.answer
        pieces = list(s)
    assert "".join(p.text for p in pieces) == s.answer.text == engine.chat(HI, temperature=0, max_tokens=16).text
    drawn = [p for p in pieces if p.token is not None]
    assert [p.token for p in drawn] == s.answer.tokens
    assert all(len(p.top) == 3 and p.top[0][1] >= p.top[2][1] and p.logprob <= 0 for p in drawn)
    assert list(s) == []


def test_text_is_whole_characters_and_stops_where_it_is_told(engine):
    a = engine.complete("caf\u00e9 \u4e2d\u6587 \U0001f600 and", max_tokens=40, ignore_eos=True, seed=3)
    assert a.finish == "length" and a.usage.generated_tokens == 40
    a.text.encode()
    b = engine.complete("1 2 3 4 5 6 7", temperature=0, stop=["11"], max_tokens=60)
    assert b.finish == "stop" and "11" not in b.text and "10" in b.text
    assert engine.complete(engine.tokenize("1 2 3 4 5 6 7"), temperature=0, stop=["11"], max_tokens=60).text == b.text


def test_a_seed_repeats_and_a_form_holds(engine):
    one = engine.chat(HI, seed=7, temperature=1.5, max_tokens=12)
    assert one.text == engine.chat(HI, seed=7, temperature=1.5, max_tokens=12).text
    assert any(engine.chat(HI, seed=s, temperature=1.5, max_tokens=12).text != one.text for s in range(3))
    schema = (
        '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false}'
    )
    assert set(json.loads(engine.chat(HI, grammar_kind="json_schema", grammar=schema, max_tokens=64).text)) == {"n"}


def test_a_tool_is_called(engine):
    tool = {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]},
        },
    }
    a = engine.chat(
        [{"role": "user", "content": "Weather in Oslo?"}], tools=[tool], forced_tool="weather", max_tokens=80
    )
    assert [c.name for c in a.calls] == ["weather"] and a.calls[0].complete and a.calls[0].id
    assert json.loads(a.calls[0].arguments)["city"] in ("Oslo", "Rome")
    assert a.message()["tool_calls"][0]["function"]["name"] == "weather"


# ---- tokens, vectors, labels ----


def test_tokens_and_bytes(engine):
    text = "Hello <|im_end|> caf\u00e9"
    tokens = engine.tokenize(text)
    assert engine.detokenize(tokens, special=True) == text
    assert (
        b"".join(engine.token_bytes(t) for t in engine.tokenize("caf\u00e9", add_special=False)).decode() == "caf\u00e9"
    )
    assert engine.tokenize("") == [] and engine.detokenize([]) == ""
    for bad in (-1, 10**6):
        with pytest.raises(radish.InvalidArgument):
            engine.token_bytes(bad)
    with pytest.raises(radish.InvalidArgument):
        engine.detokenize([10**6])
    assert "Hi" in engine.apply_template(HI) and "<|im_start|>" in engine.apply_template(HI)


def test_vectors(engine):
    a, b, c = engine.embed_all(["a small cat", "a small kitten", "tax law of 1924"], pooling="mean")
    assert len(a) == engine.info.hidden and math.isclose(sum(x * x for x in a), 1, abs_tol=1e-3)
    assert sum(x * y for x, y in zip(a, b)) > sum(x * y for x, y in zip(a, c))
    assert engine.embed("a small cat", pooling="mean") == a and engine.embed_all([]) == []
    with pytest.raises(radish.InvalidArgument, match="pooling"):
        engine.embed("x", pooling="max")


def test_labels_and_scores(engine):
    found = engine.classify_all(["The capital of France is", "The capital of England is"], [" Paris", " London"])
    assert [max(f, key=f.get) for f in found] == [" Paris", " London"]
    assert all(math.isclose(sum(f.values()), 1, abs_tol=1e-6) for f in found)
    assert engine.classify_all([], [" a"]) == []
    with engine._using() as e:  # the library is told how long its structs are here
        assert engine._info(e).size == ffi.sizeof("struct rd_info")
    with pytest.raises(radish.InvalidArgument, match="tokens, not one"):
        engine.classify("x", ["antidisestablishmentarianism"])
    tokens = engine.tokenize("The capital of France is Paris")
    scores = engine.score(tokens)
    assert len(scores) == len(tokens) and scores[0] == 0 and all(s <= 0 for s in scores) and engine.score([]) == []


# ---- errors ----


def test_what_cannot_be_raises_what_it_is(engine, tmp_path):
    with pytest.raises(radish.Error, match="nowhere") as e:
        radish.Engine(tmp_path / "nowhere.gguf")
    assert isinstance(e.value, radish.NotFound | radish.InputOutput)
    (tmp_path / "bad.gguf").write_bytes(b"no model" * 100)
    with pytest.raises(radish.Error) as e:
        radish.Engine(tmp_path / "bad.gguf")
    assert e.value.status == "RD_E_FORMAT" and isinstance(e.value, radish.BadFormat)
    with pytest.raises(ValueError, match="temperature"):
        engine.chat(HI, temperature=-1)
    with pytest.raises(radish.InvalidArgument, match="max_tokens"):
        engine.chat(HI, max_tokens=-5)
    with pytest.raises(radish.InvalidArgument, match="temperature"):
        engine.chat(HI, temperature="hot")
    with pytest.raises(radish.ContextExceeded):
        engine.complete([100] * 3000, max_tokens=1)
    with pytest.raises(radish.InvalidArgument, match="zero byte"):
        engine.chat(HI, stop=["a\0b"])
    with pytest.raises(radish.InvalidArgument):
        engine.chat([{"role": "user"}, 3])
    assert engine.chat(HI, max_tokens=2).text is not None


def test_a_full_queue_says_so():
    with radish.Engine(MODEL, max_running=1, max_queue=2, **OPTIONS) as e:
        streams = []
        with pytest.raises(radish.QueueFull):
            for i in range(50):
                streams.append(e.complete_stream(f"{i}", **LONG))
        for s in streams:
            s.close()
        idle(e)
        assert e.chat(HI, max_tokens=2).usage.generated_tokens <= 2


# ---- the end of things ----


def test_leaving_a_stream_ends_its_request(own):
    for leave in ("break", "close", "with", "del", "generator"):
        s = own.complete_stream(f"Once {leave}", **LONG)
        if leave == "generator":
            g = (p for p in s)
            next(g)
            g.close()
            del g
        else:
            next(s)
        if leave == "with":
            with s:
                pass
        elif leave == "close":
            s.close()
            s.close()
            assert list(s) == []
        del s
        gc.collect()
        stats = idle(own)
    assert stats["n_cancelled"] == 5 and stats["n_steps_after_cancel"] <= 1


def test_a_stream_is_cancelled_from_another_thread(own):
    s = own.complete_stream("Once", **LONG)
    next(s)
    threading.Timer(0.1, s.cancel).start()
    with pytest.raises(radish.Cancelled):
        for _ in s:
            pass
    idle(own)


def test_memory_comes_back_from_200_streams_that_were_half_read(own):
    def some(n, seed):
        streams = [own.complete_stream(f"{seed} {i} Once", max_tokens=200, ignore_eos=True) for i in range(n)]
        for s in streams:
            next(s)
        for s in streams[::2]:
            s.close()

    some(50, 0)
    idle(own)
    own.clear_cache()
    gc.collect()
    usage = ffi.new("struct rd_memory *")
    lib.rd_memory_usage(usage)
    before = usage.used_bytes
    for seed in range(1, 5):
        some(50, seed)
    gc.collect()
    stats = idle(own)
    own.clear_cache()
    lib.rd_memory_usage(usage)
    assert not own._requests and stats["n_failed"] == 0
    assert usage.used_bytes <= before + (1 << 20), (before, usage.used_bytes)
    assert own.stats()["pages_free"] == own.stats()["pages_total"]


def test_use_after_close_raises(own):
    left = own.complete_stream("Once", **LONG)
    next(left)
    own.close()
    own.close()
    assert own.closed
    with pytest.raises(radish.Closed):
        for _ in left:
            pass
    for use in (
        lambda: own.chat(HI),
        lambda: own.complete_stream("x"),
        lambda: own.tokenize("x"),
        lambda: own.detokenize([1]),
        lambda: own.token_bytes(1),
        lambda: own.embed("x"),
        lambda: own.classify("x", ["a"]),
        lambda: own.score([1]),
        lambda: own.apply_template(HI),
        lambda: own.info,
        own.stats,
        own.clear_cache,
    ):
        with pytest.raises(radish.Closed):
            use()


def test_closing_ends_what_other_threads_read():
    e = radish.Engine(MODEL, **OPTIONS)
    ended, started = [], threading.Barrier(5)

    def read(i):
        s = e.complete_stream(f"{i} Once", **LONG)
        next(s)
        started.wait()
        try:
            for _ in s:
                pass
            ended.append("read")
        except (radish.Closed, radish.Cancelled) as x:
            ended.append(type(x).__name__)

    threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    started.wait()
    e.close()
    for t in threads:
        t.join(30)
    assert len(ended) == 4 and "read" not in ended


def test_an_engine_that_is_forgotten_is_freed():
    usage = ffi.new("struct rd_memory *")
    e = radish.Engine(MODEL, **OPTIONS)
    e.chat(HI, max_tokens=2)
    lib.rd_memory_usage(usage)
    with_it = usage.used_bytes
    del e
    gc.collect()
    lib.rd_memory_usage(usage)
    assert usage.used_bytes < with_it - (10 << 20)


# ---- threads, the interpreter's lock, signals ----


def test_threads_share_a_batch_and_get_their_own_answers(engine):
    prompts = [f"{i} plus {i} is" for i in range(12)]
    alone = [engine.complete(p, temperature=0, max_tokens=12).text for p in prompts]
    together = [None] * len(prompts)

    def ask(i):
        together[i] = engine.complete(prompts[i], temperature=0, max_tokens=12).text

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert together == alone


def test_one_stream_read_by_two_threads_gives_each_piece_once(engine):
    s = engine.complete_stream("Once", temperature=0, max_tokens=60, ignore_eos=True)
    got = []

    def read():
        for p in s:
            got.append(p.token)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(t for t in got if t is not None) == sorted(s.answer.tokens) and len(s.answer.tokens) == 60


@pytest.mark.parametrize("call", ["score", "complete", "embed"])
def test_no_call_holds_the_interpreter(engine, call):
    """Another thread of Python goes on while the library computes: it counts during the call."""
    count, done = 0, threading.Event()

    def tick():
        nonlocal count
        while not done.is_set():
            count += 1
            time.sleep(0)

    tokens = [200 + i % 900 for i in range(900)]
    work = {
        "score": lambda: engine.score(tokens),
        "complete": lambda: engine.complete(tokens, max_tokens=4, cache_prompt=False),
        "embed": lambda: engine.embed(tokens, pooling="mean"),
    }[call]
    t = threading.Thread(target=tick)
    t.start()
    before = count
    work()
    during = count - before
    done.set()
    t.join()
    assert during > 50


def test_ctrl_c_interrupts_a_stream():
    program = f"""
import radish
with radish.Engine({MODEL!r}, n_threads=1, n_ctx=1024, kv_tokens=8192) as e:
    s = e.complete_stream("Once", max_tokens=900, ignore_eos=True)
    next(s)
    try:
        print("started", flush=True)
        while True:
            list(s)
            s = e.complete_stream("Once", max_tokens=900, ignore_eos=True)
    except KeyboardInterrupt:
        s.close()
        print("interrupted", e.chat([{{"role": "user", "content": "Hi"}}], max_tokens=1).finish)
"""
    p = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    )
    assert p.stdout.readline() == "started\n"
    p.send_signal(signal.SIGINT)
    out, _ = p.communicate(timeout=120)
    assert p.returncode == 0 and out.startswith("interrupted")


# ---- event loops ----


def test_many_streams_in_one_event_loop(engine):
    prompts = [f"{i} times {i} is" for i in range(40)]
    alone = [engine.complete(p, temperature=0, max_tokens=8).text for p in prompts]

    async def one(p):
        async with engine.complete_stream(p, temperature=0, max_tokens=8) as s:
            return "".join([piece.text async for piece in s]), s.answer.text

    async def all_of_them():
        return await asyncio.gather(*(one(p) for p in prompts))

    found = asyncio.run(all_of_them())
    assert [a for a, _ in found] == alone and [b for _, b in found] == alone
    assert sum(t.name == "radish-pump" for t in threading.enumerate()) >= 1
    assert asyncio.run(all_of_them()) == found  # another loop, the same engine


def test_a_slow_reader_gets_everything(engine):
    async def slow():
        s = engine.complete_stream("Once", temperature=0, max_tokens=150, ignore_eos=True)
        n = 0
        async for p in s:
            n += p.token is not None
            if n < 4:
                await asyncio.sleep(0.3)
        return n, s.answer

    n, answer = asyncio.run(slow())
    assert n == 150 and answer.text == engine.complete("Once", temperature=0, max_tokens=150, ignore_eos=True).text


def test_a_cancelled_task_takes_its_request_along(own):
    async def leave():
        tasks = [asyncio.create_task(own.acomplete(f"{i} Once", **LONG)) for i in range(4)]
        async with own.complete_stream("Once", **LONG) as s:
            await anext(s)
        for t in tasks:
            t.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert all(isinstance(e, asyncio.CancelledError) for e in asyncio.run(leave()))
    stats = idle(own)
    assert stats["n_stop"] == stats["n_length"] == 0


def test_what_fails_in_the_pump_is_one_streams_end(engine, monkeypatch):
    async def two():
        good = engine.complete_stream("Once", max_tokens=8)
        bad = engine.complete_stream("Twice", max_tokens=8)

        def fail(ev):
            raise MemoryError

        monkeypatch.setattr(
            _stream.Stream,
            "_take",
            lambda s, ev, real=_stream.Stream._take: (fail if s is bad else real.__get__(s))(ev),
        )
        with pytest.raises(MemoryError):
            await bad.aread()
        assert (await good.aread()).text
        monkeypatch.undo()
        assert (await engine.acomplete("Once", max_tokens=2)).tokens

    asyncio.run(asyncio.wait_for(two(), 60))


def test_errors_and_the_engines_end_reach_the_loop(own):
    async def errors():
        with pytest.raises(radish.ContextExceeded):
            await own.acomplete([100] * 3000, max_tokens=1)
        s = own.complete_stream("Once", **LONG)
        await anext(s)
        await asyncio.to_thread(own.close)
        with pytest.raises((radish.Closed, radish.Cancelled)):
            async for _ in s:
                pass

    asyncio.run(asyncio.wait_for(errors(), 60))


def test_a_stream_that_was_closed_does_not_hang_the_loop(engine):
    async def closed():
        s = engine.complete_stream("Once", **LONG)
        await anext(s)
        s.close()
        rest = [p async for p in s]
        with pytest.raises(RuntimeError, match="event loop"):
            next(s)
        return rest

    asyncio.run(asyncio.wait_for(closed(), 60))


# ---- what else is in the package ----


def test_the_program_is_there(tmp_path):
    out = subprocess.run([Path(sys.executable).parent / "radish", "--version"], capture_output=True, text=True)
    assert out.stdout.split()[:2] == ["radish", radish.__version__]
    out = subprocess.run([sys.executable, "-m", "radish", "fetch", "--list"], capture_output=True, text=True)
    assert "smollm2" in out.stdout
    assert (Path(radish.__file__).parent / "py.typed").exists()


def test_adapters_that_are_not_there(engine):
    with pytest.raises(radish.NotFound, match="x"):
        engine.load_adapter("x", "/nowhere")
    with pytest.raises(radish.NotFound):
        engine.unload_adapter("x")
    assert engine.adapters() == []
    with pytest.raises(radish.NotFound):
        engine.complete("Once", max_tokens=1, adapters={"x": None})
    assert engine.complete("Once", max_tokens=2, temperature=0, adapters={}).text


# ---- fork, and exceptions in between ----


def in_child(what):
    """what() in a child of fork(), while the parent's threads run; what it raised, or "" (within a minute)."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(60)  # a hang is a failure
            what()
            said = ""
        except BaseException as e:  # noqa: BLE001
            said = f"{type(e).__name__}: {e}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as f:
        said = f.read().decode()
    assert os.waitpid(pid, 0)[1] == 0, "the child did not end by itself"
    return said


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_fork_is_told_and_the_parent_goes_on(own):
    stream = own.complete_stream("Once upon a time", **LONG)
    first = next(stream)

    async def read():
        async for _ in stream:
            pass

    for call in (
        lambda: own.complete("a", max_tokens=1),
        lambda: next(own.complete_stream("a", max_tokens=1)),
        lambda: own.tokenize("a"),
        own.stats,
        lambda: next(stream),
        stream.read,
        lambda: asyncio.run(own.achat(HI, max_tokens=1)),
        lambda: asyncio.run(read()),
    ):
        assert in_child(call).startswith("Closed: the engine belongs to the process that opened it")

    def leave():
        nonlocal stream
        stream.cancel()
        stream.close()
        stream = None
        own.close()
        own.close()
        gc.collect()
        assert own.closed

    assert in_child(leave) == ""
    answer = stream.read()  # no child has ended it
    assert answer.usage.generated_tokens == LONG["max_tokens"] and answer.text.startswith(first.text)
    assert not own.closed and own.complete("a", max_tokens=1).usage.generated_tokens == 1
    idle(own)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_fork_opens_an_engine_of_its_own(own):
    wanted = own.complete("The capital of France is", max_tokens=4, temperature=0).text
    stream = own.complete_stream("Once upon a time", **LONG)
    next(stream)

    def ask():
        with radish.Engine(MODEL, **OPTIONS) as e:
            assert e.complete("The capital of France is", max_tokens=4, temperature=0).text == wanted
            assert asyncio.run(e.achat(HI, max_tokens=2)).usage.generated_tokens == 2

    assert in_child(ask) == ""
    stream.close()
    idle(own)


def test_exceptions_between_pieces_end_their_requests(own):
    """In a for, in a with, in a generator that is dropped, in a task beside others: nothing stays behind."""
    for _ in range(20):
        with pytest.raises(ZeroDivisionError), own.complete_stream("a", **LONG) as s:
            for piece in s:
                raise ZeroDivisionError(piece)

    async def one(i):
        async with own.complete_stream(f"{i} a", **LONG) as s:
            async for _ in s:
                if i % 2:
                    raise ZeroDivisionError
                await asyncio.sleep(0)

    async def all_of_them():
        tasks = [asyncio.create_task(one(i)) for i in range(16)]
        await asyncio.wait(tasks, timeout=60, return_when=asyncio.FIRST_EXCEPTION)
        for t in tasks:
            t.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    ended = {type(e) for e in asyncio.run(all_of_them())}
    assert ended <= {ZeroDivisionError, asyncio.CancelledError} and ZeroDivisionError in ended
    idle(own)


def test_the_end_is_told_to_a_loop_that_has_just_taken_the_last_piece(own):
    """As many pieces as before wait then, and the loop waits for another."""
    s = own.complete_stream("a", max_tokens=1)
    s.read()
    s._ahead.append(radish.Piece("a", ""))

    def poll(_):
        s._ahead.popleft()  # the loop's thread, between two lines of the pump's
        return _stream.END

    s._poll = poll
    assert s._fill() and list(s._ahead) == [_stream.END]


def test_engines_are_closed_while_everything_is_asked():
    """Calls, streams, cancels from 8 threads; close() comes at any time, and ends them all with Closed."""
    for _ in range(3):
        e, wrong = radish.Engine(MODEL, **OPTIONS), []

        def use(k, e=e, wrong=wrong):
            calls = (
                lambda: e.complete("a", max_tokens=2),
                lambda: next(e.complete_stream("b", **LONG)),
                e.stats,
                lambda: e.tokenize("abc"),
                lambda: asyncio.run(e.acomplete("c", max_tokens=2)),
                lambda: e.embed("d"),
                e.clear_cache,
                lambda: e.complete_stream("e", **LONG).cancel(),
            )
            try:
                while True:
                    with contextlib.suppress(radish.QueueFull):
                        calls[k % len(calls)]()
            except radish.Closed:
                pass
            except BaseException as error:  # noqa: BLE001
                wrong.append(error)

        threads = [threading.Thread(target=use, args=(k,)) for k in range(8)]
        for t in threads:
            t.start()
        time.sleep(0.2)
        e.close()
        for t in threads:
            t.join(60)
        assert not wrong and not any(t.is_alive() for t in threads), wrong


def test_handles_without_an_engine_are_there_for_programs_in_python(engine):
    """radish/flat.h as it is, by cffi."""
    tokens = engine.tokenize("The quick brown fox jumps over the lazy dog, and then it sleeps.")
    o, f, h = ffi.new("struct rd_options *"), ffi.new("rd_flat **"), ffi.new("rd_handle[3]")
    err, info = ffi.new("struct rd_error *"), ffi.new("struct rd_flat_info *")
    model = ffi.new("char[]", MODEL.encode())
    lib.rd_options_default(o)
    o.model, o.kv_tokens = model, 1024
    assert lib.rd_flat_open(o, f, err) == 0
    info.size = ffi.sizeof("struct rd_flat_info")
    lib.rd_flat_get_info(f[0], info)
    once, pieces = (ffi.new("float[]", info.n_vocab) for _ in range(2))
    assert lib.rd_flat_forward(f[0], 0, tokens, len(tokens), once, h, err) == 0
    assert lib.rd_flat_slice(f[0], h[0], 5, h + 1, err) == 0
    assert lib.rd_flat_forward(f[0], h[1], tokens[5:], len(tokens) - 5, pieces, h + 2, err) == 0
    assert bytes(ffi.buffer(once)) == bytes(ffi.buffer(pieces))
    for i in (0, 1, 2, 2, 0):
        lib.rd_flat_free(f[0], h[i])
    assert lib.rd_flat_forward(f[0], h[1], tokens, 1, ffi.NULL, h, err) != 0 and b"freed before" in ffi.string(err.text)
    lib.rd_flat_get_info(f[0], info)
    assert info.n_pages_free == info.n_pages and info.n_handles == 0
    lib.rd_flat_close(f[0])


def test_an_answer_says_where_it_points(engine):
    folder = Path(os.environ["RADISH_POINTING"])
    screen = "data:image/png;base64," + base64.b64encode((folder / "screen.png").read_bytes()).decode()
    asked = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": screen}}]}]
    with radish.Engine(folder, n_threads=2, kv_tokens=2048) as own:
        points = own.chat(asked, max_tokens=3).points
        assert points == own.chat(asked, max_tokens=3).points
    assert 1 <= len(points) <= 5 and all(0 < p.x < 1 and 0 < p.y < 1 for p in points)
    assert {(p.pointer, p.image) for p in points} == {(0, 0)}
    assert [p.score for p in points] == sorted((p.score for p in points), reverse=True)
    assert engine.chat(HI, max_tokens=2).points == []
