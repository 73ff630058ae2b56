"""The command line as a person meets it: help, messages, exit statuses."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

COMMANDS = [
    "run",
    "chat",
    "serve",
    "ps",
    "stop",
    "key",
    "fetch",
    "pull",
    "list",
    "show",
    "rm",
    "inspect",
    "convert",
    "tokenize",
    "template",
    "grammar",
    "doctor",
    "cache",
    "api",
    "bench",
    "perplexity",
    "train",
    "help",
    "completion",
    "version",
]
WITHOUT_DEFAULT = {"--stop", "--lora"}  # a list that starts empty


def test_the_overview_names_every_command(radish):
    r = radish("--help")
    assert r.returncode == 0 and r.err == ""
    assert re.findall(r"^  ([a-z]+) {2,}\S", r.out, re.M) == COMMANDS
    assert "Examples" in r.out


@pytest.mark.parametrize("command", COMMANDS)
def test_each_help_gives_usage_and_fits_the_screen(radish, command):
    r = radish(command, "--help")
    assert r.returncode == 0 and r.err == ""
    assert "Usage: radish %s" % command in r.out
    assert max(map(len, r.out.splitlines())) <= 130
    assert radish("help", command).out == r.out
    assert radish(command, "-h").out == r.out


@pytest.mark.parametrize("command", COMMANDS)
def test_each_flag_with_a_value_says_its_default(radish, command):
    text = radish(command, "--help").out
    rows = re.findall(r"^  (?:-\w, )?(--[a-z-]+) [A-Z]+\b(.*(?:\n {26}.*)*)", text, re.M)
    for flag, rest in rows:
        assert flag in WITHOUT_DEFAULT or re.search(r"\[[^\]]+\]", rest), flag
    assert command in ("list", "show", "rm", "inspect", "doctor", "api", "completion", "version") or rows


def test_statuses_and_variables_are_told_alike(radish, root, build):
    """--help, the man page and docs/cli.md."""
    page = (root / "docs/cli.md").read_text()
    overview = radish("--help").out
    statuses = re.findall(r"^  (\d+) +(?:(\w+): )?(.*)$", overview[overview.index("Exit status") :], re.M)
    assert [s[0] for s in statuses] == ["0", "1", "2", "70", "130"]
    for status, command, text in statuses:
        assert re.search(r"^\| %s +\| %s" % (status, re.escape((command and "`%s`: " % command) + text)), page, re.M), (
            text
        )
    source = (build / "man/radish.1").read_text()
    variables = re.findall(r"^\.TP\n\.B ([A-Z_]+)$", source, re.M)
    assert "RADISH_MODELS" in variables and "HF_TOKEN" in variables
    assert re.findall(r"^\| `([A-Z_]+)`", page, re.M) == variables
    read = set(
        re.findall(
            r'(?:getenv|hub_variable)\("(RADISH_\w+)"\)', "".join(p.read_text() for p in (root / "src/cli").glob("*.c"))
        )
    )
    assert read <= set(variables)


@pytest.mark.parametrize("command", COMMANDS)
def test_values_that_a_shell_offers_stand_in_the_help(radish, command):
    for flag in ("--device", "--kv-type", "--pre", "--tool-parser", "--chat-template"):
        rows = re.findall(r"^  (?:-\w, )?%s [A-Z]+(.*(?:\n {26}.*)*)" % flag, radish(command, "--help").out, re.M)
        if not rows:
            continue
        offered = [
            line.split("\t")[0] for line in radish("completion", "--words", "--", command, flag, "").out.splitlines()
        ]
        offered = [value for value in offered if not value.startswith(":")]
        for value in offered:
            assert value in re.sub(r"\s+", " ", rows[0]), (flag, value)


def test_no_command_is_a_usage_error(radish):
    r = radish()
    assert r.returncode == 2 and "Usage:" in r.err and r.out == ""


def test_version(radish):
    assert re.fullmatch(r"radish \d+\.\d+\.\d+\n", radish("--version").out)
    assert radish("version").out == radish("--version").out


@pytest.mark.parametrize(
    "args,wanted",
    [
        (["rnu"], "did you mean run?"),
        (["frobnicate"], "unknown command frobnicate"),
        (["help", "frobnicate"], "unknown command frobnicate"),
        (["help", "rnu"], "did you mean run?"),
        (["run"], "radish run MODEL [PROMPT]"),
        (["run", "m", "p", "more"], 'unexpected "more"'),
        (["run", "m", "--max-token", "3"], "did you mean --max-tokens?"),
        (["run", "m", "--max-tokens"], "--max-tokens wants a whole number"),
        (["run", "m", "--max-tokens", "x"], '--max-tokens: got "x", wanted a whole number'),
        (["run", "m", "--max-tokens=-1"], '--max-tokens: got "-1"'),
        (["run", "m", "--max-tokens", "99999999999"], "--max-tokens"),
        (["run", "m", "--top-p", "1.5"], '--top-p: got "1.5", wanted a number from 0 to 1'),
        (["run", "m", "--temperature", "nan"], "--temperature"),
        (["run", "m", "--presence-penalty", "3"], "wanted a number from -2 to 2"),
        (["run", "m", "--raw=yes"], "--raw takes no value"),
        (["run", "m", "--threads", "65"], "wanted a whole number from 0 to 64"),
        (["run", "m", "--kv-bytes", "much"], "wanted a size in bytes such as 512M"),
        (["serve", "m", "--port", "70000"], '--port: got "70000", wanted a whole number from 0 to 65535'),
        (["serve", "m", "--log-level", "loud"], "wanted one of error|warn|info|debug"),
        (["bench", "m", "--batch", "1,0"], "--batch"),
        (["bench", "m", "--gen", "1"], "wanted a whole number from 2"),
        (["perplexity", "m"], "radish perplexity MODEL FILE"),
        (["inspect", "--verbose", "m"], "unknown flag --verbose"),
        (["api", "chat"], 'unexpected "chat"; wanted: radish api [FLAGS]'),
    ],
)
def test_a_wrong_line_names_what_is_wrong_and_exits_2(radish, args, wanted):
    r = radish(*args)
    assert r.returncode == 2 and r.out == ""
    assert wanted in r.err
    assert "--help" in r.err or "Usage" in r.err or args[0] in ("bench", "help")


def test_an_unknown_model_lists_what_is_there_and_how_to_fetch(radish, tmp_path):
    (tmp_path / "one.gguf").write_bytes(b"")
    (tmp_path / "two.gguf").write_bytes(b"")
    (tmp_path / "three.txt").write_bytes(b"")
    for command in ("run", "chat", "serve", "inspect", "tokenize", "bench"):
        r = radish(command, "three", env={"RADISH_MODELS": str(tmp_path)})
        assert r.returncode == 1
        assert "one" in r.err and "two" in r.err and "radish fetch NAME" in r.err


def test_list_shows_files_and_directories(radish, tmp_path):
    (tmp_path / "b.gguf").write_bytes(b"x" * 1048576)
    hub = tmp_path / "a-hub"
    hub.mkdir()
    (hub / "config.json").write_text("{}")
    (tmp_path / "not-a-model").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    env = {"RADISH_MODELS": str(tmp_path)}
    assert [line.split()[:2] for line in radish("list", env=env).out.splitlines()] == [["b", "gguf"]]
    (hub / "model.safetensors").write_bytes(b"x" * 10)
    got = json.loads(radish("list", "--json", env=env).out)
    assert got == [
        {"name": "a-hub", "format": "safetensors", "bytes": 10},
        {"name": "b", "format": "gguf", "bytes": 1048576},
    ]
    r = radish("inspect", "a-hub", env=env)
    assert r.returncode == 1 and "model.safetensors" in r.err


def test_list_shows_a_split_model_once(radish, tmp_path):
    for part in (
        "s-00001-of-00003",
        "s-00002-of-00003",
        "s-00003-of-00003",
        "t-00002-of-00002",
        "-00001-of-00002",
        "u-0001-of-0002",
    ):
        (tmp_path / (part + ".gguf")).write_bytes(b"x" * 1000)
    got = json.loads(radish("list", "--json", env={"RADISH_MODELS": str(tmp_path)}).out)
    assert [(e["name"], e["bytes"]) for e in got] == [
        ("-00001-of-00002", 1000),
        ("s-00001-of-00003", 3000),
        ("u-0001-of-0002", 1000),
    ]


def test_a_misspelt_model_is_suggested(radish, tmp_path):
    (tmp_path / "smollm2.gguf").write_bytes(b"")
    for name in ("smolm2", "smollm", "Smollm2"):
        assert "Did you mean smollm2?" in radish("run", name, env={"RADISH_MODELS": str(tmp_path)}).err
    assert "Did you mean" not in radish("run", "llama", env={"RADISH_MODELS": str(tmp_path)}).err


def test_inspect_begins_with_what_a_reader_wants_first(radish, model, tmp_path):
    lines = radish("inspect", model).out.splitlines()
    assert [line.split()[0] for line in lines[:7]] == [
        "name",
        "architecture",
        "parameters",
        "weights",
        "context",
        "memory",
        "runs",
    ]
    assert "llama, 30 layers" in lines[1] and "134.5 million" in lines[2] and "Q4_1 (68 %)" in lines[3]
    assert (
        "8192 tokens" in lines[4] and lines[5].endswith("for one full context") and lines[6].split() == ["runs", "yes"]
    )
    data = open(model, "rb").read()
    other = tmp_path / "other.gguf"
    for before, after, why in (
        (b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0lambo", 'architecture "lambo" is not supported'),
        (b"blk.3.attn_q.weight", b"blk.3.attn_x.weight", "blk.3.attn_q.weight"),
        (b"\x06\0\0\0\0\0\0\0smollm", b"\x06\0\0\0\0\0\0\0smalln", "smalln"),
    ):
        assert data.count(before) >= 1
        other.write_bytes(data.replace(before, after, 1))
        r = radish("inspect", other)
        assert r.returncode == 0 and re.search(r"^runs          no: .*%s" % re.escape(why), r.out, re.M), r.out[:600]
        assert why in json.loads(radish("inspect", other, "--json").out)["run"]["error"]


def test_inspect_says_what_an_encoder_of_images_takes(radish):
    vision = Path(__file__).parents[1] / "golden" / "vision"
    for path, first in (("qwen2vl", r"qwen2vl_merger encoder, 3 layers"), ("gemma3", r"gemma3 encoder, 2 layers")):
        for form in (vision / path, vision / path / "mmproj.gguf"):
            text = radish("inspect", form).out
            assert re.search(r"^images        %s, patches of" % first, text, re.M), text[:500]
            assert re.search(r"^              640 x 480: [1-9][0-9]* tokens, 1344 x 1344: ", text, re.M), text[:500]
            images = json.loads(radish("inspect", form, "--json").out)["images"]
            assert all(n > 0 for n in images["tokens"].values()) and images["patch"] > 0
            alone = form.name == "mmproj.gguf"
            assert bool(re.search(r"^runs          beside its model: --mmproj", text, re.M)) == alone
            assert ("chat template" in text) != alone


def test_a_missing_file_is_named(radish, tmp_path):
    r = radish("inspect", tmp_path / "gone.gguf")
    assert r.returncode == 1 and "gone.gguf: no such file" in r.err


def test_a_file_that_is_no_model_is_refused(radish, tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"not a model, only some text that is long enough for a header")
    for command in (["inspect"], ["tokenize"], ["run"], ["serve"]):
        r = radish(*command, bad, stdin="x")
        assert r.returncode == 1, command
        assert "bad.gguf" in r.err and "GGUF" in r.err, r.err


def test_a_folder_and_a_device_are_no_models(radish, tmp_path):
    for path, wanted in ((tmp_path, "is a directory"), ("/dev/zero", "is a device")):
        for command in (["inspect"], ["tokenize"], ["run"]):
            r = radish(*command, path, stdin="x")
            assert r.returncode == 1 and r.err.count(str(path)) == 1 and wanted in r.err


@pytest.mark.parametrize("args", [["help"], ["serve", "--help"], ["list", "--json"], ["api"]])
def test_output_that_cannot_be_written_is_a_failure(radish, args):
    with open("/dev/full", "wb") as full:
        r = subprocess.run([radish.path, *args], stdout=full, stderr=subprocess.PIPE, text=True)
    assert r.returncode == 1 and r.stderr == "radish: standard output cannot be written: No space left on device\n"


def test_output_that_was_closed_is_a_failure_where_something_is_printed(radish, model):
    def closed(*args):
        return subprocess.run([radish.path, *args], preexec_fn=lambda: os.close(1), stderr=subprocess.PIPE, text=True)

    r = closed("run", model, "Hi", "-n", "2", "--threads", "1", "--temperature", "0")
    assert r.returncode == 1 and "radish: standard output cannot be written: Bad file descriptor" in r.stderr
    assert closed("list", "--json").returncode == 1


def test_output_that_failed_long_ago_has_no_reason_made_up(radish, model):
    """A chat flushes each answer: when it ends, errno is no longer that of the write that failed."""
    with open("/dev/full", "wb") as full:
        line = [radish.path, "chat", model, "-n", "2", "--threads", "1"]
        r = subprocess.run(line, input="hi\n", stdout=full, stderr=subprocess.PIPE, text=True)
    assert r.returncode == 1 and "standard output cannot be written" in r.stderr and "Success" not in r.stderr, r


@pytest.mark.parametrize("flag", ["--tensor-parallel", "--gpus", "--devices", "--worker", "--rpc", "--models-dir"])
def test_what_is_not_built_is_no_flag(radish, flag):
    """F94, F95, F99: several GPUs, workers, several models."""
    r = radish("serve", "any", flag, "2")
    assert r.returncode == 2 and b"unknown flag " + flag.encode() in r.stderr


def test_doctor_tells_what_is_wrong_and_what_to_do(radish, tmp_path):
    (tmp_path / "run").symlink_to(tmp_path)
    env = {"RADISH_MODELS": str(tmp_path), "RADISH_PACKED": "/dev/null/x", "RADISH_CACHE": "", "RADISH_RUN_DIR": str(tmp_path / "run"), "HF_HUB_CACHE": str(tmp_path / "hub")}  # fmt: skip
    r = radish("doctor", "--json", env=env)
    findings = {f["id"]: f for f in json.loads(r.out)["findings"]}
    assert r.returncode == 0 and {"packed-folder", "run-folder", "no-models"} <= set(findings)
    assert findings["packed-folder"]["fault"] and "/dev/null/x: Not a directory" in findings["packed-folder"]["what"]
    assert "RADISH_PACKED" in findings["packed-folder"]["remedy"] and not findings["no-models"]["fault"]
    text = radish("doctor", env=env).out
    for f in findings.values():
        assert "%s%s\n" % ("FAULT: " if f["fault"] else "", f["what"]) in text and "-> %s\n" % f["remedy"] in text
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    env |= {"RADISH_PACKED": str(tmp_path), "RADISH_RUN_DIR": str(tmp_path / "none")}
    rest = {f["id"] for f in json.loads(radish("doctor", "--json", env=env).out)["findings"]}
    assert not rest & {"packed-folder", "run-folder", "no-models"}
    assert not (tmp_path / "none").exists()  # it looked, and wrote nothing


def test_doctor_names_what_computes_each_type_of_weights(radish):
    report = json.loads(radish("doctor", "--json").out)
    text = radish("doctor").out
    cpu = report["cpu"]
    assert 0 < cpu["memory_free_bytes"] <= cpu["memory_bytes"]
    flags = set(re.search(r"^(?:flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M)[1].split())
    assert set(cpu["features"].split()) <= flags
    assert "%s is used, of: %s\n" % (cpu["instruction_set"], cpu["features"]) in text
    kernels = report["kernels"]
    assert {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"} | {f"Q{n}_K" for n in range(2, 7)} == set(
        kernels
    )
    assert all(what and what in text for what in kernels.values())
    if report["choice"]["device"] == "cpu":
        own = cpu["instruction_set"].replace("amx", "avx512")
        assert all(what.startswith(own + ": ") for what in kernels.values())
        assert "scales per 32" in kernels["Q8_0"] and "scales per 256" in kernels["Q4_K"] and "float" in kernels["BF16"]


@pytest.mark.parametrize("line,word", [("run", "MODEL"), ("chat", "MODEL"), ("serve", "MODEL"), ("key", "NAME")])
def test_what_is_missing_is_named(radish, line, word):
    r = radish(line, env={"RADISH_CONFIG": ""})
    assert r.returncode == 2 and f"radish {line}: {word} is missing; wanted: radish {line} {word}" in r.err


def test_a_model_that_is_not_there_can_be_got(radish, tmp_path):
    r = radish("run", "nowhere", "x", env={"RADISH_MODELS": str(tmp_path), "RADISH_CONFIG": ""})
    assert r.returncode == 1 and "There are no models yet.\n" in r.err
    assert "radish fetch --list" in r.err and "radish pull ORG/NAME" in r.err and "radish fetch nowhere" not in r.err


TINY = Path(__file__).resolve().parents[1] / "golden/llama/tiny-llama.gguf"


@pytest.mark.parametrize(
    "line, rc, wanted",
    [
        ("serve TINY --port 0 --api-key-file /no/such", 1, "--api-key-file: such: there is no such file"),
        ("serve TINY --port 0 --api-key-file FOLDER", 1, "is a directory, wanted a regular file"),
        ("serve TINY --port 0 --config /no/such.toml", 2, "--config /no/such.toml: there is no such file"),
        ("serve TINY --port 0 --lora-dir /no/such", 1, "--lora-dir /no/such: there is no such folder"),
        ("serve TINY --port 0 --warm /no/such", 1, "--warm: such: there is no such file"),
        ("serve TINY --port 0 --tool-parser none-such", 1, 'tool parser "none-such": hermes'),
        ("serve TINY --port 0 --memory-limit 3M", 1, "--memory-limit is too little for it"),
        ("serve TINY --listen unix:/no/such/s.sock", 1, "/no/such/s.sock: its folder is not there"),
        ("serve TINY --host 8.8.8.8 --port 0", 1, "this machine has no such address"),
        ("serve EMPTY --port 0", 1, "empty.gguf: header: not a GGUF file: it has less than 4 bytes"),
        ("serve PIPE --port 0", 1, "pipe: is a FIFO, wanted a regular file"),
        ("serve FOLDER", 1, "a folder without models"),
        ("pull", 2, "ORG/NAME[:QUANT|/FILE] is missing"),
        ("run", 2, "MODEL is missing"),
        ("cache stats --url http://127.0.0.1:9", 1, "http://127.0.0.1:9: nothing listens on 127.0.0.1 port 9"),
        ("template none.jinja", 1, "none.jinja: there is no such file"),
    ],
)
def test_a_message_says_what_is_wrong_and_where(radish, tmp_path, line, rc, wanted):
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.gguf").touch()
    os.mkfifo(tmp_path / "pipe")
    places = {"TINY": TINY, "FOLDER": "folder", "EMPTY": "empty.gguf", "PIPE": "pipe"}
    r = radish(*(places.get(w, w) for w in line.split()), cwd=tmp_path)
    told = [t for t in r.err.splitlines() if t.startswith("radish")]
    assert r.returncode == rc and wanted in told[0], r.err
    assert len(told) == (2 if rc == 2 else 1) and "pipe: pipe" not in r.err


def test_a_hub_that_cannot_be_reached_is_named_with_what_to_do(radish, tmp_path):
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9", "no_proxy": "*"}
    p = radish.start("pull", "org/name", env=env, stderr=subprocess.PIPE, text=True)
    first = p.stderr.readline()
    assert "127.0.0.1:9 cannot be reached" in first and "; trying again in 1 s (1 of 5)" in first
    _, rest = p.communicate(timeout=90)
    assert p.returncode == 1 and "HF_ENDPOINT another hub" in rest, rest
