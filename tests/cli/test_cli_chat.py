"""radish chat at a terminal (a pty) and without one. Nothing sleeps: each step waits for what the screen shows."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import stat
import struct
import termios
import time

import pytest

GREEDY = ["--temperature", "0"]


class Terminal:
    """A program on a terminal of its own; seen: everything that it wrote."""

    def __init__(self, args, columns=80, env=None):
        self.seen, self.at = "", 0
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(
                args[0], [str(a) for a in args], {**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8", **(env or {})}
            )
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))

    def until(self, wanted, seconds=60):
        """What came since the last call, up to and with wanted."""
        end = time.monotonic() + seconds
        while (found := self.seen.find(wanted, self.at)) < 0:
            assert time.monotonic() < end, "%r is not in %r" % (wanted, self.seen[self.at :])
            if select.select([self.fd], [], [], 0.2)[0]:
                self.seen += os.read(self.fd, 65536).decode(errors="replace")
        piece, self.at = self.seen[self.at : found + len(wanted)], found + len(wanted)
        return piece

    def type(self, text):
        data = text.encode()
        while data:  # a terminal takes a few thousand bytes at a time
            data = data[os.write(self.fd, data[:1024]) :]
            if select.select([self.fd], [], [], 0)[0]:
                self.seen += os.read(self.fd, 65536).decode(errors="replace")

    def code(self, seconds=60):
        """Its exit status, once it has closed the terminal."""
        end = time.monotonic() + seconds
        while True:
            assert time.monotonic() < end, self.seen[self.at :]
            if not select.select([self.fd], [], [], 0.2)[0]:
                continue
            try:
                piece = os.read(self.fd, 65536)
            except OSError:
                break
            self.seen += piece.decode(errors="replace")
        status = os.waitpid(self.pid, 0)[1]
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def close(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


def rows(shown):
    """What a terminal's rows hold after shown: of its sequences, \\033[nG (to a column) and \\033[K (erase) count."""
    plain = []
    for row in re.sub(r"\033\[\?2004[hl]", "", shown).replace("\r", "").split("\n"):
        line = ""
        for piece in re.split(r"(\033\[\d+G\033\[K)", row):
            m = re.match(r"\033\[(\d+)G", piece)
            line = line[: int(m.group(1)) - 1] if m else line + piece
        plain.append(line.rstrip())
    return plain


def flat(shown):
    return " ".join(rows(shown))


READY = "\033[?2004h"  # the editor waits for a message


@pytest.fixture
def chat(radish, model, tmp_path):
    opened = []

    def start(*flags, columns=80, env=None):
        t = Terminal([radish.path, "chat", model, *flags], columns, {"XDG_STATE_HOME": str(tmp_path), **(env or {})})
        opened.append(t)
        t.until(READY)
        return t

    yield start
    for t in opened:
        t.close()


def ask(t, text):
    """Types a message and gives what is shown until the next prompt."""
    t.type(text + "\r")
    return t.until(READY)


def prompt_tokens(shown):
    return [int(n) for n in re.findall(r"prompt (\d+) tokens", shown)]


def refused_tokens(shown):
    return int(re.search(r"your prompt has (\d+) tokens", shown).group(1))


def test_a_pasted_text_is_one_message_however_long(chat, radish, model):
    t = chat("-n", "1", "-v", *GREEDY)
    short = "One\n\n  two\tthree"
    piped = '"""\n%s\n"""\n'
    assert prompt_tokens(ask(t, "\033[200~" + short.replace("\n", "\r") + "\033[201~")) == prompt_tokens(
        radish("chat", model, "-n", 1, "-v", *GREEDY, stdin=piped % short).err
    )
    ask(t, "/clear")
    t.type("/quit\r")
    assert t.code() == 0
    t = chat("--ctx", "64")  # refused, with its length: nothing of it is computed
    long = "".join("line %d of a long text, with \u00e4 and \u4f60\n" % i for i in range(300)) + "end"
    assert len(long) > 4095
    shown = ask(t, "Read: \033[200~" + long + "\033[201~ now")
    assert "[paste 1: 301 lines" in shown
    assert (
        refused_tokens(flat(shown))
        == refused_tokens(radish("chat", model, "--ctx", 64, stdin=piped % ("Read: " + long + " now")).err)
        > 4000
    )


def test_a_line_is_not_cut_at_4095_bytes(chat, radish, model):
    line = "word " * 1200 + "end"
    t = chat("--ctx", "64")
    shown = ask(t, line)
    assert (
        refused_tokens(flat(shown)) == refused_tokens(radish("chat", model, "--ctx", 64, stdin=line + "\n").err) > 1200
    )


def test_escape_sequences_in_a_paste_do_nothing(chat):
    t = chat("-n", "1")
    t.type("\033[200~a\033[31mb\x07c\033[201~")
    t.until("a[31mbc")
    t.type("\r")
    t.until(READY)


def test_history_is_kept_for_the_user_alone_and_found_again(chat, tmp_path):
    t = chat("-n", "1", *GREEDY)
    ask(t, "an early question about r\u00e4dishes")
    ask(t, "a later one")
    t.type("/quit\r")
    assert t.code() == 0
    file = tmp_path / "radish/chat_history"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        "an early question about r\u00e4dishes",
        "a later one",
        "/quit",
    ]
    t = chat("-n", "1", *GREEDY)
    t.type("\033[A\033[A")  # up, up
    t.until("a later one")
    t.type("\x01\x0b")  # Ctrl-A, Ctrl-K
    t.type("\x12early")  # Ctrl-R
    t.until("an early question")
    t.type("\x03")
    t.until(READY)
    t.type("\x04")
    assert t.code() == 0


def test_a_damaged_or_long_history_is_read_and_cut(chat, tmp_path):
    file = tmp_path / "radish/chat_history"
    file.parent.mkdir()
    lines = ['"line %d"' % i for i in range(2500)]
    file.write_bytes("\n".join(lines).encode() + b'\n"cut\x00\nnot JSON\n17\n"newest"\n')
    t = chat("-n", "1")
    t.type("\033[A")
    t.until("newest")
    t.type("\x15\x04")
    assert t.code() == 0
    assert len(file.read_bytes().splitlines()) == 1000


def test_keys_edit_the_line(chat):
    t = chat("-n", "1")
    t.type("/hXelp\x02\x02\x02\x08\r")  # back three, rub out the X
    t.until("this list")
    t.until(READY)
    t.type("/he\t\r")
    t.until("this list")
    t.until(READY)
    t.type("\x03")
    t.until("Ctrl-D or /quit")


def test_the_commands_of_a_chat(chat, tmp_path):
    t = chat("-n", "4", "-v", *GREEDY)
    first = prompt_tokens(ask(t, "My name is Ada."))
    assert "no system message" in ask(t, "/system")
    ask(t, "/system Answer briefly.")
    assert "Answer briefly." in ask(t, "/system")
    again = ask(t, "/retry")
    assert "answer will be the same" in again and prompt_tokens(again) != first
    saved = tmp_path / "talk.json"
    assert "Saved to" in ask(t, "/save %s" % saved)
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    talk = json.loads(saved.read_text())
    assert talk["model"].endswith("smollm2.gguf")
    assert [m["role"] for m in talk["messages"]] == ["system", "user", "assistant"]
    assert talk["messages"][1]["content"] == "My name is Ada." and talk["messages"][2]["content"]
    assert "Saved" in ask(t, "/save")  # the file of before may be replaced
    ask(t, "/undo")
    assert "nothing to take back" in ask(t, "/undo")
    assert "no question yet" in ask(t, "/retry")
    assert "3 messages" in ask(t, "/load %s" % saved)
    assert "is there already" in ask(t, "/save %s" % __file__)
    assert "not JSON" in ask(t, "/load %s" % __file__)
    assert "no such file" in ask(t, "/load /nowhere").lower()
    assert "did you mean /retry?" in ask(t, "/rety")
    assert "no model" in ask(t, "/model nothing-of-that-name")
    assert "no such file" in ask(t, "/model /nowhere.gguf")
    assert "goes on with this" in ask(t, "/model %s" % talk["model"])
    assert prompt_tokens(ask(t, "What is my name?"))[0] > first[0]
    ask(t, "/clear")
    assert prompt_tokens(ask(t, "/clear the table"))[0] < 60  # text
    t.type("/bye\r")
    assert t.code() == 0


def test_a_model_that_cannot_be_opened_leaves_the_one_before(chat, tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"not a model" * 100)
    t = chat("-n", "2", "-v")
    assert "Still " in ask(t, "/model %s" % bad)
    assert prompt_tokens(ask(t, "Hi"))


def test_an_answer_is_wrapped_and_followed_by_its_speed(chat):
    t = chat("-n", "60", "--ignore-eos", *GREEDY, columns=30)
    shown = ask(t, "Tell me a long story about a fox.")
    assert re.search(r"\[60 tokens, [\d.]+ tok/s; \d+ of \d+", flat(shown))
    answer = rows(shown[shown.index("\033[?2004l") : shown.index("The answer was")])
    assert len(answer) > 5 and max(map(len, answer)) <= 30
    assert "cut after 60 tokens" in flat(shown)


def test_ctrl_c_stops_the_answer_and_the_chat_goes_on(chat):
    t = chat("-n", "0", "--ignore-eos", *GREEDY)
    t.type("Tell me a story.\r")
    t.until("The story")
    t.type("\x03")
    t.until(READY)
    t.type("half a line\x03")
    t.until(READY)
    assert "system" in ask(t, "/help")
    t.type("\x04")
    assert t.code() == 0


def test_a_long_prompt_shows_how_far_it_is(chat):
    t = chat("-n", "1", "--threads", "1")
    t.type("\033[200~" + "many words of a long prompt\n" * 250 + "\033[201~\r")
    assert re.search(r"reading the prompt: \d+ of \d+ tokens, \d+ %", t.until("%"))
    t.type("\x03")
    t.until(READY)


def test_a_full_context_says_what_to_do(chat, radish, model):
    t = chat("--ctx", "128", "-n", "8")
    shown = ask(t, "word " * 200)
    assert "/clear starts afresh" in flat(shown) and "--ctx" in shown
    shown = ask(t, "Hi")  # the long one is gone
    assert "context" in shown and "/clear" not in shown
    r = radish("chat", model, "--ctx", 128, "-n", 8, stdin="word " * 200 + "\nHi\n")
    assert r.returncode == 1 and "maximum context length is 128" in r.err and r.out.strip()


def test_a_dumb_terminal_still_chats(chat, radish, model, tmp_path):
    t = Terminal([radish.path, "chat", model, "-n", "2"], env={"TERM": "dumb", "XDG_STATE_HOME": str(tmp_path)})
    try:
        t.until("> ")
        t.type("Hi\n")
        t.until("from the cache")
        t.until("> ")
        t.type("/quit\n")
        assert t.code() == 0 and not (tmp_path / "radish").exists()
    finally:
        t.close()


def test_the_terminal_is_as_it_was_when_a_signal_ends_the_chat(chat):
    t = chat("-n", "1")
    os.kill(t.pid, signal.SIGTERM)
    assert t.code() == -signal.SIGTERM
    after = termios.tcgetattr(t.fd)
    assert after[3] & termios.ICANON and after[3] & termios.ECHO
