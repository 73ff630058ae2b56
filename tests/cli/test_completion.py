"""The Tab key: what radish answers, and what bash, zsh and fish make of it."""

import json
import os
import pty
import re
import select
import subprocess
import time

import pytest


@pytest.fixture(scope="module")
def env(tmp_path_factory, radish):
    home = tmp_path_factory.mktemp("home")
    (home / "models").mkdir()
    for name in ("alpha", "alphabet", "beta"):
        (home / "models" / (name + ".gguf")).write_bytes(b"GGUF")
    hub = home / "hub/models--org--tiny"
    (hub / "snapshots" / ("a" * 40)).mkdir(parents=True)
    (hub / "blobs").mkdir()
    (hub / "refs").mkdir()
    (hub / "refs/main").write_text("a" * 40)
    for quant in ("Q4_K_M", "Q8_0"):
        digest = ("4" if quant == "Q4_K_M" else "8") * 64
        (hub / "blobs" / digest).write_bytes(b"GGUF")
        (hub / "snapshots" / ("a" * 40) / ("tiny-%s.gguf" % quant)).symlink_to("../../blobs/" + digest)
    (home / "notes.txt").write_text("x")
    (home / "Folder").mkdir()
    return {
        "HOME": str(home),
        "RADISH_MODELS": str(home / "models"),
        "HF_HUB_CACHE": str(home / "hub"),
        "PATH": os.path.dirname(radish.path) + ":" + os.environ["PATH"],
        "TERM": "dumb",
        "LC_ALL": "C.UTF-8",
    }


@pytest.fixture
def answers(radish, env):
    def ask(*words):
        r = radish("completion", "--words", "--", *words, env=env)
        assert r.returncode == 0 and r.err == ""
        return [line.split("\t")[0] for line in r.out.splitlines()]

    return ask


MODELS = ["alpha", "alphabet", "beta", "org/tiny:Q4_K_M", "org/tiny:Q8_0"]


def test_commands_and_their_meaning(radish, answers):
    assert answers("") == answers() == re.findall(r"^  ([a-z]+) {2,}\S", radish("--help").out, re.M)
    assert answers("ru") == answers("help", "ru") == ["run"] and answers("x") == answers("frobnicate", "") == []
    assert answers("--") == ["--help", "--version"]
    assert radish("completion", "--words", "--", "ru").out == "run\tone prompt in, streamed text out\n"


def test_models_where_a_model_is_wanted(answers):
    assert answers("run", "") == answers("serve", "alpha", "") == [*MODELS, ":files"]
    assert answers("run", "alp") == ["alpha", "alphabet", ":files"]
    assert answers("run", "alpha", "") == answers("run", "alpha", "x", "") == []
    assert answers("run", "--temperature", "0", "-v", "al") == ["alpha", "alphabet", ":files"]
    assert answers("run", "--", "al") == ["alpha", "alphabet", ":files"]
    assert answers("run", "alpha", "--draft", "b") == ["beta", ":files"]
    assert answers("perplexity", "alpha", "") == [":files"]


def test_what_can_be_fetched_and_pulled(answers, root):
    known = list(json.loads((root / "tools/models.json").read_text()))
    assert len(known) > 2 and answers("fetch", "") == known and answers("fetch", known[0], "") == []
    assert answers("fetch", "--list", "smol") == ["smollm2"]
    assert answers("pull", "") == ["org/tiny:Q4_K_M", "org/tiny:Q8_0", ":files"]
    assert answers("show", "be") == answers("rm", "be") == ["beta", ":files"]


def test_values_where_a_value_is_wanted(answers):
    assert answers("run", "a", "--kv-type", "q8") == ["q8_0", "q8_0/q4_0"]
    assert answers("run", "a", "--kv-type=q4") == ["--kv-type=q4_0"]
    assert answers("serve", "--log-level", "") == ["error", "warn", "info", "debug"]
    assert answers("run", "--grammar", "") == [":files"] and answers("run", "--cache-dir=") == [":folders"]
    assert answers("run", "--seed", "") == answers("run", "--seed=") == answers("run", "--none=") == []
    assert answers("cache", "sa") == ["save"] and answers("completion", "") == ["bash", "zsh", "fish"]


def test_flags_once_unless_they_may_be_repeated(answers):
    assert answers("run", "a", "--kv-b") == ["--kv-bytes"]
    assert answers("run", "a", "--kv-bytes", "1G", "--kv-b") == answers("run", "--kv-bytes=1G", "--kv-b") == []
    assert "--ctx" in answers("run", "-") and "--ctx" not in answers("run", "-c", "5", "-")
    assert answers("run", "--stop", "x", "--stop") == ["--stop"]
    assert answers("run", "--", "--sto") == [":files"]


def test_the_scripts_are_those_of_the_tree(radish, root):
    for shell, name in (("bash", "radish.bash"), ("zsh", "_radish"), ("fish", "radish.fish")):
        assert radish("completion", shell).out == (root / "src/cli/shell" / name).read_text()
    for words in ((), ("tcsh",)):
        r = radish("completion", *words)
        assert r.returncode == 2 and "bash, zsh or fish" in r.err


class Shell:
    """A shell on a terminal of its own."""

    def __init__(self, env, *command):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(env["HOME"])
            os.execvpe(command[0], command, env)
        self.text = ""

    def send(self, keys):
        os.write(self.fd, keys.encode())

    def wait(self, wanted, seconds=20):
        """Until the pattern is there; what came before it is forgotten."""
        end = time.monotonic() + seconds
        while not (found := re.search(wanted, self.text)):
            assert time.monotonic() < end, (wanted, self.text)
            if select.select([self.fd], [], [], 0.2)[0]:
                self.text += os.read(self.fd, 65536).decode(errors="replace")
        self.text = self.text[found.end() :]
        return found

    def close(self):
        os.close(self.fd)
        os.waitpid(self.pid, 0)


TYPED = [
    ("radish ru\t", "radish run "),
    ("radish run alphab\t", "radish run alphabet "),
    ("radish run beta --kv-ty\t", "--kv-type "),
    ("radish run beta --device=cu\t", "--device=cuda "),
    ("radish run org/tiny:Q8\t", "run org/tiny:Q8_0 "),
    ("radish serve --log-level d\t", "--log-level debug "),
    ("radish run ./no\t", "./notes.txt "),
    ("radish run beta --cache-dir Fo\t", "--cache-dir Folder/"),
]


def type_and_look(shell):
    for keys, wanted in TYPED:
        shell.send(keys)
        shell.wait(re.escape(wanted.rstrip()))
        shell.send("\x15")  # forgets the line
        shell.send("echo re''ady\r")
        shell.wait("ready\r?\n")


def test_bash_completes(env, radish):
    shell = Shell(env, "bash", "--norc", "--noprofile", "-i")
    shell.send("PS1='$ '; bind 'set enable-bracketed-paste off'; source <(radish completion bash); echo re''ady\r")
    shell.wait("ready\r+\n")
    type_and_look(shell)
    shell.send("radish run al\t\t\t")
    shell.wait(r"alpha +alphabet")
    shell.close()


def test_bash_hands_over_words_as_they_were_typed(env, tmp_path):
    """A function in the program's place writes what it is given: words are not parted at : and =."""
    script = tmp_path / "try.bash"
    script.write_text(
        'source <(radish completion bash)\nradish() { shift 3; printf "<%%s>" "$@" >&3; }\n'
        "compopt() { :; }\n"
        'try() { COMP_LINE=$1; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _radish 2>/dev/null; echo >&3; }\n'
        "exec 3>%s/said\n"
        "try 'radish run org/x:Q4' radish run org/x : Q4\n"
        "try 'radish run --a=b: ' radish run --a = b : ''\n"
        "try 'radish  run   a' radish run a\n"
        "try 'radish run --a=' radish run --a =\n" % tmp_path
    )
    r = subprocess.run(["bash", script], env=env, capture_output=True, text=True, timeout=60)
    said = (tmp_path / "said").read_text().splitlines()
    assert said == ["<run><org/x:Q4>", "<run><--a=b:><>", "<run><a>", "<run><--a=>"], (said, r.stderr)


def test_zsh_completes(env):
    shell = Shell(env, "zsh", "-f", "-i")
    shell.send("PS1='$ '; autoload -U compinit; compinit -D -u; source <(radish completion zsh); echo re''ady\r")
    shell.wait("ready\r+\n")
    type_and_look(shell)
    shell.send("radish lis\t")
    shell.wait("list")
    shell.close()


@pytest.mark.parametrize("typed,wanted", [
    ("radish ru", ["run\tone prompt in, streamed text out"]),
    ("radish run al", ["alpha", "alphabet"]),
    ("radish run org/tiny:Q8", ["org/tiny:Q8_0"]),
    ("radish serve --log-level d", ["debug"]),
    ("radish run beta --device=cu", ["--device=cuda"]),
    ("radish run ./no", ["./notes.txt"]),
    ("radish run beta --cache-dir Fo", ["Folder/"]),
])  # fmt: skip
def test_fish_completes(env, typed, wanted):
    line = "radish completion fish | source; complete -C '%s'" % typed
    r = subprocess.run(["fish", "--no-config", "-c", line], env=env, cwd=env["HOME"], capture_output=True, text=True)
    said = [line if "one prompt" in line else line.split("\t")[0] for line in r.stdout.splitlines()]
    assert said == wanted, r
