"""run, chat, bench, perplexity and serve with a real model."""

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from xml.etree import ElementTree

import pytest

GREEDY = ["--temperature", "0"]


def test_an_answer_and_its_statistics(radish, model):
    r = radish("run", model, "Name the capital of France.", "--max-tokens", 24, "-v", *GREEDY)
    assert r.returncode == 0 and "Paris" in r.out and r.out.endswith("\n")
    assert re.search(r"prompt \d+ tokens \(0 cached\) .* generated \d+ tokens .* tok/s", r.err)


def test_stdin_is_the_prompt_and_quiet_is_quiet(radish, model):
    a = radish("run", model, "Count to five.", "-n", 16, *GREEDY)
    b = radish("run", model, "-n", 16, *GREEDY, stdin="Count to five.")
    assert a.out == b.out != ""
    assert a.err == b.err == "radish: the answer was cut after 16 tokens; --max-tokens N allows more\n"
    whole = radish("run", model, "Name the capital of France.", *GREEDY)
    assert "Paris" in whole.out and whole.err == ""


def test_what_is_piped_in_follows_the_prompt(radish, model, tmp_path):
    text = "A radish is a root.\nIt is red."
    whole = radish("run", model, "Repeat this:\n\n" + text, "-n", 12, "-v", *GREEDY)
    both = radish("run", model, "Repeat this:", "-n", 12, "-v", *GREEDY, stdin=text)
    (tmp_path / "text").write_text(text)
    with open(tmp_path / "text") as file:
        from_file = subprocess.run(
            [radish.path, "run", model, "Repeat this:", "-n", "12", *GREEDY], stdin=file, capture_output=True, text=True
        )
    prompt = [re.search(r"prompt (\d+) tokens", r.err).group(1) for r in (whole, both)]
    assert whole.out == both.out == from_file.stdout != "" and prompt[0] == prompt[1]
    nothing = subprocess.run(
        [radish.path, "run", model, "Hi", "-n", "1", *GREEDY], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert nothing.returncode == 0 and nothing.stdout == radish("run", model, "Hi", "-n", 1, *GREEDY).out
    raw = radish("run", model, "--raw", "1, 2, 3", "-n", 6, "-v", *GREEDY, stdin=", 4, 5,")
    assert raw.out == radish("run", model, "--raw", "1, 2, 3, 4, 5,", "-n", 6, *GREEDY).out


def test_a_pipe_that_stays_silent_is_said(radish, model):
    p = radish.start(
        "run", model, "Hi", "-n", "1", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert p.stderr.readline().startswith(b"radish: waiting for standard input")
    p.communicate(b"")
    assert p.returncode == 0


@pytest.mark.parametrize("command", ["run", "chat"])
@pytest.mark.parametrize(
    "stdin,wanted",
    [
        (b"", "standard input is empty"),
        (b"caf\xe9", "standard input is not UTF-8: byte 0xe9 at offset 3"),
        (b"\xf0\x9f\x8c", "byte 0xf0 at offset 0"),
    ],
)
def test_standard_input_that_is_no_prompt_is_refused(radish, model, command, stdin, wanted):
    r = radish(command, model, stdin=stdin)
    assert r.returncode == 1 and wanted in r.err and r.err.startswith("radish: ") and r.out == ""


def test_standard_input_without_end_is_refused(radish, model):
    with open("/dev/zero", "rb") as zeros:
        r = subprocess.run([radish.path, "run", model], stdin=zeros, capture_output=True, timeout=60)
    assert r.returncode == 1 and b"the text is longer than" in r.stderr and r.stdout == b""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_conversion_that_is_stopped_leaves_nothing(radish, model, tmp_path, how):
    p = radish.start("convert", model, "-o", str(tmp_path / "x.gguf"), stderr=subprocess.PIPE)
    while not list(tmp_path.iterdir()):
        assert p.poll() is None
        time.sleep(0.001)
    p.send_signal(how)
    p.communicate()
    assert p.returncode == 130 and not list(tmp_path.iterdir())


def test_a_prompt_without_a_word_is_refused(radish, model):
    assert "standard input is empty" in radish("run", model, stdin=" \n\t\n").err
    assert radish("run", model, "").err == "radish: the prompt is empty\n"
    r = radish("run", model, "Translate:", stdin=b"caf\xe9")
    assert r.returncode == 1 and "standard input is not UTF-8: byte 0xe9 at offset 3" in r.err
    r = subprocess.run([radish.path, "run", model, b"caf\xe9"], stdin=subprocess.DEVNULL, capture_output=True)
    assert r.returncode == 1 and b"the prompt is not UTF-8: byte 0xe9 at offset 3" in r.stderr


def test_a_full_context_is_said(radish, model):
    r = radish("run", model, "Tell me a story.", "--ctx", 64, "-n", 0, "--ignore-eos")
    assert r.returncode == 0 and "fill the context; --ctx N allows more" in r.err


def test_raw_continues_the_text_and_stop_ends_before_it(radish, model):
    whole = radish("run", model, "--raw", "1, 2, 3, 4,", "-n", 16, *GREEDY).out
    assert "5" in whole
    cut = radish("run", model, "--raw", "1, 2, 3, 4,", "-n", 16, "--stop", "never there", "--stop", "7", *GREEDY).out
    assert whole.startswith(cut.rstrip("\n")) and "7" not in cut and "6" in cut


def test_a_seed_gives_the_same_text_and_another_one_another(radish, model):
    def text(seed):
        return radish("run", model, "Tell me a story.", "-n", 24, "--temperature", "1.5", "--seed", seed).out

    assert text(1) == text(1) != text(2)


@pytest.mark.parametrize(
    "args,wanted",
    [
        (["--raw", ""], "prompt is empty"),
        (["--ctx", "16", "word " * 40], "maximum context length is 16"),
        (["--page-tokens", "3", "hi"], "power of two"),
        (["--pre", "unheard-of", "hi"], "unheard-of"),
        (["--kv-tokens", "16", "--ctx", "4096", "hi"], "KV budget"),
    ],
)
def test_what_the_library_refuses_is_said_and_exits_1(radish, model, args, wanted):
    r = radish("run", model, *args)
    assert r.returncode == 1 and r.err.startswith("radish: ") and wanted in r.err
    assert r.out == ""


def test_a_bad_template_file_is_an_error(radish, model, tmp_path):
    bad = tmp_path / "bad.jinja"
    bad.write_text("{% for m in messages %}")
    r = radish("run", model, "hi", "-n", 1, "--chat-template", bad)
    assert r.returncode == 1 and r.err.startswith("radish: ") and r.out == ""


def test_text_streams_and_ctrl_c_ends_it(radish, model):
    p = radish.start(
        "run",
        model,
        "--raw",
        "Once upon a time",
        "-n",
        0,
        "--ignore-eos",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert p.stdout.read(20)
    assert p.poll() is None  # it is still writing
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=20)
    assert p.returncode == 130 and out.endswith(b"\n") and err == b""


def on_terminal(args, seconds=60):
    """Runs args with stderr on a terminal; what it wrote there, and its exit status."""
    ours, theirs = pty.openpty()
    p = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    seen, end = b"", time.monotonic() + seconds
    while time.monotonic() < end:
        if not select.select([ours], [], [], 1)[0]:
            continue
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        seen += piece
    os.close(ours)
    return seen.decode(), p.wait(10)


def test_a_progress_bar_on_a_terminal_that_goes_away(radish, model):
    seen, code = on_terminal([radish.path, "run", model, "hi", "-n", "1"])
    assert code == 0
    assert re.search(r"loading smollm2.gguf \[#*\.*\] +\d+ %", seen)
    assert re.search(r"\r\033\[Kradish: the answer was cut after 1 token; [^\r]*\r\n$", seen)
    assert "loading" not in radish("run", model, "hi", "-n", 1).err


def test_chat_takes_the_conversation_from_the_cache(radish, model):
    r = radish(
        "chat",
        model,
        "-n",
        12,
        "-v",
        *GREEDY,
        stdin="My name is Ada.\n\nWhat is my name?\n/clear\nHello\n/exit\nnever read\n",
    )
    assert r.returncode == 0
    turns = re.findall(r"prompt (\d+) tokens \((\d+) cached\)", r.err)
    assert len(turns) == 3
    (first, none), (second, cached), _ = [tuple(map(int, t)) for t in turns]
    assert none == 0 and second > first and cached >= first
    assert r.out.count("\n\n") >= 3


def test_a_message_of_several_lines_in_a_chat(radish, model):
    def tokens(stdin):
        r = radish("chat", model, "-n", 4, "-v", *GREEDY, stdin=stdin)
        assert r.returncode == 0
        return [int(n) for n in re.findall(r"prompt (\d+) tokens", r.err)], r.out

    one, said = tokens('"""\nOne\n\n  two\n"""\n')
    assert len(one) == 1 and tokens('"""One\n\n  two"""\n') == (one, said)
    assert tokens('"""One\n\n  two') == (one, said)  # the end closes it
    assert len(tokens("One\n\n  two\n")[0]) == 2


def test_a_command_that_a_chat_does_not_know_is_not_sent(radish, model):
    r = radish("chat", model, "-n", 1, "-v", stdin="/help\n/?\n/frobnicate\n/usr/bin is what?\n/quit\nnever read\n")
    assert (
        r.err.count("a new conversation") == 2
        and "There is no /frobnicate" in r.err
        and len(re.findall(r"prompt \d+ tokens", r.err)) == 1
    )


def read_until(fd, wanted, seconds=60):
    """What a terminal shows until it shows wanted."""
    seen, end = "", time.monotonic() + seconds
    while wanted not in seen:
        assert time.monotonic() < end, seen
        if select.select([fd], [], [], 0.2)[0]:
            seen += os.read(fd, 65536).decode(errors="replace")
    return seen


def test_one_ctrl_d_ends_a_prompt_that_is_typed(radish, model):
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(radish.path, [radish.path, "run", model, "-n", "1", "-v"])
    try:
        read_until(terminal, "then Ctrl-D")
        os.write(terminal, b"Hello\n\x04")
        read_until(terminal, "prompt ")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        pid = 0
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(terminal)


def test_ctrl_c_in_a_chat_stops_the_answer_and_not_the_chat(radish, model):
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm", XDG_STATE_HOME="/dev/null")
        os.execv(radish.path, [radish.path, "chat", model, "-n", "0", "--ignore-eos", "--temperature", "0"])
    try:
        read_until(terminal, "\033[?2004h")
        os.write(terminal, b"Tell me a story.\r")
        read_until(terminal, "The story")
        os.write(terminal, b"\x03")
        read_until(terminal, "\033[?2004h")
        os.write(terminal, b"\x03")  # at the prompt: only the line goes
        read_until(terminal, "\033[?2004h")
        os.write(terminal, b"/exit\r")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        pid = 0
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(terminal)


def test_bench_measures_what_was_asked(radish, model):
    r = radish("bench", model, "--prompt", 64, "--gen", 8, "--reps", 1, "--batch", "1,3", "--json")
    assert r.returncode == 0, r.err
    d = json.loads(r.out)
    assert d["prefill_tok_s"] > 0 and d["decode_tok_s"] > 0
    assert 0 < d["weights_ms"] <= d["load_ms"] and d["tensor_bytes"] > 0
    assert [b["n"] for b in d["batched"]] == [1, 3] and all(b["tok_s"] > 0 for b in d["batched"])
    assert d["prompt"] == 64 and d["gen"] == 8 and d["threads"] >= 1
    assert "prefill" in radish("bench", model, "--prompt", 16, "--gen", 4, "--reps", 1).out
    d = json.loads(
        radish("bench", model, "--prompt", 0, "--gen", 8, "--reps", 1, "--batch", 2, "--depth", "0,40", "--json").out
    )
    assert [(b["n"], b["depth"]) for b in d["batched"]] == [(2, 0), (2, 40)]
    assert all(b["tok_s"] > 0 and b["shared"] is False for b in d["batched"])
    table = radish("bench", model, "--prompt", 0, "--gen", 8, "--reps", 1, "--batch", 3, "--depth", 300, "--shared").out
    assert "decode, 3 sequences after the same 300" in table


def test_bench_draws_what_it_measured(radish, model, tmp_path):
    svg = tmp_path / "bench.svg"
    r = radish("bench", model, "--prompt", "16,32", "--gen", 4, "--reps", 1, "--batch", 2, "--plot", "--svg", svg)
    assert r.returncode == 0, r.err
    groups = re.findall(r"^(prefill|decode.*)$", r.out, re.M)
    assert groups == ["prefill", "decode", "decode, several at once"]
    bars = re.findall(r"^  (\S.*?) +(█+[▏▎▍▌▋▊▉]?) ([\d.]+) tok/s$", r.out, re.M)
    assert [b[0] for b in bars] == ["16 tokens", "32 tokens", "after 0 tokens", "2 sequences"]
    picture = ElementTree.fromstring(svg.read_text())
    words = [t.text for t in picture.iter("{http://www.w3.org/2000/svg}text")]
    widths = [
        float(e.get("width")) for e in picture.iter("{http://www.w3.org/2000/svg}rect") if e.get("class") == "bar"
    ]
    assert "%s tok/s" % bars[0][2] in words and "32 tokens" in words and len(widths) == 4
    assert max(widths[:2]) == widths[2] == widths[3]  # each group fills its scale
    a, b = float(bars[0][2]), float(bars[1][2])
    assert abs(widths[0] / widths[1] - a / b) < 0.02 * max(1, a / b)
    r = radish("bench", model, "--prompt", 16, "--gen", 4, "--reps", 1, "--svg", tmp_path / "none/x.svg")
    assert r.returncode == 1 and "none/x.svg cannot be written: No such file or directory" in r.err and r.out == ""


def test_bench_says_when_the_sequences_never_ran_at_once(radish, model):
    r = radish("bench", model, "--prompt", 8, "--gen", 2, "--reps", 1, "--batch", 24, "--ctx", 18)
    assert r.returncode == 1 and "larger --gen" in r.err and r.out == ""


def test_bench_lets_a_batch_write_until_all_of_it_has_run_at_once(radish, model):
    r = radish("bench", model, "--prompt", 0, "--gen", 4, "--reps", 1, "--batch", 24, "--json")
    assert r.returncode == 0, r.err
    assert json.loads(r.out)["batched"][0]["tok_s"] > 0


def test_perplexity_is_llamacpps(radish, model, root):
    """llama-perplexity -m smollm2.gguf -f LICENSE -c 256 gives LLAMA_CPP."""
    LLAMA_CPP = 17.7310
    r = radish("perplexity", model, root / "LICENSE", "--ctx", 256)
    assert r.returncode == 0, r.err
    ppl, error = map(float, re.match(r"PPL = ([\d.]+) \+/- ([\d.]+)", r.out).groups())
    assert abs(ppl / LLAMA_CPP - 1) < 0.01 and 0 < error < ppl
    assert "chunk 1 of" in r.err


def test_perplexity_wants_two_chunks_of_text(radish, model, tmp_path):
    (tmp_path / "short").write_text("too short")
    r = radish("perplexity", model, tmp_path / "short")
    assert r.returncode == 1 and "wanted at least 1024" in r.err
    assert radish("perplexity", model, tmp_path / "gone").returncode == 1


def get(url, key=None):
    request = urllib.request.Request(url, headers={"Authorization": "Bearer " + key} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as r:
            return r.status
    except urllib.error.HTTPError as e:
        return e.code


def test_serve_says_where_it_listens_asks_for_the_key_and_ends_on_sigterm(radish, model):
    p = radish.start(
        "serve",
        model,
        "--port",
        0,
        "--kv-tokens",
        2048,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "RADISH_API_KEY": "secret"},
    )
    try:
        url = re.search(r"http://[\d.]+:\d+", p.stdout.readline().decode()).group()
        end = time.monotonic() + 60
        while get(url + "/health") != 200:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert get(url + "/v1/models") == 401
        assert get(url + "/v1/models", "wrong") == 401
        assert get(url + "/v1/models", "secret") == 200
        p.send_signal(signal.SIGTERM)
        assert p.wait(20) == 0
    finally:
        p.kill()
        p.wait()


def test_serve_names_a_port_that_is_taken(radish, model):
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        r = radish("serve", model, "--port", port)
        assert r.returncode == 1 and str(port) in r.err


def test_serve_refuses_an_empty_key_instead_of_letting_everybody_in(radish, model):
    r = radish("serve", model, "--port", 0, "--api-key", "")
    assert r.returncode == 2 and "--api-key: the key is empty" in r.err and r.out == ""


def test_a_budget_beyond_the_machines_memory_is_refused_when_it_starts(radish, model):
    for flags in ["--kv-bytes", "1000000G"], ["--kv-tokens", "4000000000"]:
        r = radish("run", model, "Hi", "-n", 1, *flags)
        assert r.returncode == 1 and re.search(r"KV budget of \d+ MiB: this machine.* has \d+ MiB", r.err), r.err


def test_a_context_that_is_cut_or_beyond_the_models_own_is_said(radish, model):
    r = radish("run", model, "Hi", "-n", 1, "--ctx", 4096, "--kv-tokens", 2048)
    assert r.returncode == 0 and "context 2048 instead of 4096: the KV budget" in r.err
    r = radish("run", model, "Hi", "-n", 1, "--ctx", 10000, "--kv-tokens", 16384)
    assert r.returncode == 0 and "context 10000: the model was made for 8192" in r.err


def test_standard_streams_that_are_closed_are_not_taken_by_other_files(radish, model):
    p = radish.start(
        "serve",
        model,
        "--port",
        0,
        "--kv-tokens",
        2048,
        "--log-level",
        "debug",
        preexec_fn=lambda: [os.close(fd) for fd in (0, 1, 2)],
    )
    try:
        end = time.monotonic() + 60
        links = {}
        while "2" not in links or len(links) < 6:  # it runs: it has sockets and more
            assert p.poll() is None and time.monotonic() < end, links
            time.sleep(0.05)
            links = {fd: os.readlink("/proc/%d/fd/%s" % (p.pid, fd)) for fd in os.listdir("/proc/%d/fd" % p.pid)}
        assert links["0"] == links["1"] == links["2"] == "/dev/null"
    finally:
        p.kill()
        p.wait()


def test_a_server_whose_output_was_closed_serves_and_ends_well(radish, model):
    """Where it serves is printed: that nobody can read it is no failure."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    p = radish.start("serve", model, "--port", port, "--kv-tokens", 2048, preexec_fn=lambda: os.close(1))
    try:
        end, status = time.monotonic() + 60, None
        while status != 200:
            assert p.poll() is None and time.monotonic() < end
            time.sleep(0.05)
            try:
                status = urllib.request.urlopen("http://127.0.0.1:%d/health" % port).status
            except OSError:
                pass
        p.terminate()
        assert p.wait(60) == 0
    finally:
        p.kill()
        p.wait()
