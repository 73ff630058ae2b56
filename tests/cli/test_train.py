"""`radish train`: samples to an adapter; killed, interrupted and resumed it ends with the same bytes; what is wrong is said."""

import json
import os
import random
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest

LONG = os.environ.get("RADISH_LONG") == "1"  # 20 kills, not 4
FINAL = ["adapter_model.safetensors", "adapter_config.json", "adapter.gguf", "log.jsonl", "checkpoint.radish"]


def lines(n=24):
    for i in range(n):
        if i % 3 == 0:
            messages = [("user", "say %d" % i), ("assistant", "yes %d!" % i), ("user", "more"), ("assistant", "no")]
            yield {"messages": [{"role": r, "content": c} for r, c in messages]}
        elif i % 3 == 1:
            yield {"prompt": "abc %d " % i, "completion": "the end"}
        else:
            yield {"text": "the other %d" % i}


@pytest.fixture
def tiny(root):
    return root / "tests/golden/llama/tiny-llama.gguf"


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(x) + "\n" for x in lines()))
    return path


def flags(data, out, *more):
    return ["--data", data, "-o", out, "--rank", "4", "--lr", "1e-2", "--dropout", "0.1", "--gguf", *more]


def bytes_of(folder):
    return {name: (folder / name).read_bytes() for name in FINAL}


def test_a_training_makes_an_adapter_that_has_learned(radish, tiny, data, tmp_path):
    r = radish("train", tiny, *flags(data, tmp_path / "a", "--epochs", "30"))
    assert r.returncode == 0, r.err
    assert "90 steps of 24 samples" in r.out
    log = [json.loads(x) for x in (tmp_path / "a/log.jsonl").read_text().splitlines()]
    assert [x["step"] for x in log] == list(range(1, 91))
    assert log[-1]["loss"] < log[0]["loss"] / 2
    assert (tmp_path / "a/loss.svg").read_text().startswith("<svg")
    config = json.loads((tmp_path / "a/adapter_config.json").read_text())
    assert config["r"] == 4 and config["lora_alpha"] == 32 and config["peft_type"] == "LORA"
    plain, *tuned = [
        radish("run", tiny, "abc 1 ", "--raw", "--temperature", "0", "-n", "8", *x).out
        for x in ([], ["--lora", "a=%s" % (tmp_path / "a")], ["--lora", "a=%s" % (tmp_path / "a/adapter.gguf")])
    ]
    assert tuned[0] == tuned[1] != plain
    assert "theend" in tuned[0].replace(" ", "")


def test_lists_of_messages_as_prompt_and_completion_are_a_conversation(radish, tiny, data, tmp_path):
    """Of one answer: the same sample as `messages`, so the same bytes. Of two: the first is not learned."""
    made = [
        ([{"role": "user", "content": "say %d" % i}], [{"role": "assistant", "content": "yes %d" % i}])
        for i in range(6)
    ]
    forms = {
        "messages": [{"messages": p + c} for p, c in made],
        "lists": [{"prompt": p, "completion": c} for p, c in made],
    }
    first = [{"role": "user", "content": "hm"}, {"role": "assistant", "content": "aha"}]
    forms["both"] = [{"messages": first + p + c} for p, c in made]
    forms["last"] = [{"prompt": first + p, "completion": c} for p, c in made]
    tokens = {}
    for name, samples in forms.items():
        data.write_text("".join(json.dumps(x) + "\n" for x in samples))
        r = radish("train", tiny, *flags(data, tmp_path / name, "--steps", "2"))
        assert r.returncode == 0, r.err
        tokens[name] = json.loads((tmp_path / name / "log.jsonl").read_text().splitlines()[0])
    assert bytes_of(tmp_path / "messages") == bytes_of(tmp_path / "lists")
    assert tokens["both"] != tokens["last"]


def test_a_merged_model_says_what_the_adapter_does(radish, tiny, data, tmp_path):
    assert radish("train", tiny, *flags(data, tmp_path / "a", "--epochs", "30")).returncode == 0
    say = ["abc 1 ", "--raw", "--temperature", "0", "-n", "8"]
    want = radish("run", tiny, *say, "--lora", "a=%s" % (tmp_path / "a")).out
    for path in ("a", "a/adapter.gguf"):
        out = tmp_path / "merged.gguf"
        r = radish("convert", tiny, "-o", out, "--type", "bf16", "--merge-lora", tmp_path / path, "--force")
        assert r.returncode == 0, r.err
        assert radish("run", out, *say).out == want
    other = tiny.parents[1] / "gemma2/tiny-gemma2.gguf"
    r = radish("convert", other, "-o", tmp_path / "x.gguf", "--merge-lora", tmp_path / "a")
    assert r.returncode == 1 and "another" in r.err and not (tmp_path / "x.gguf").exists()
    r = radish("convert", tiny, "-o", tmp_path / "x.gguf", "--merge-lora", tmp_path / "none")
    assert r.returncode == 1 and "none: no adapter" in r.err  # it is not the model that is missing
    for path in ("a", "a/adapter.gguf"):  # what many try first
        r = radish("run", tmp_path / path, "hi")
        assert r.returncode == 1 and "an adapter (LoRA), no model: give it to --lora" in r.err, r.err


def test_a_message_of_weight_0_is_not_learned(radish, tiny, tmp_path):
    """As in OpenAI's files of samples."""
    say = lambda role, content, **more: {"role": role, "content": content} | more  # noqa: E731
    first, second = [say("user", "a"), say("assistant", "the")], [say("user", "b"), say("assistant", "of")]
    written = {
        "weights": {"messages": [first[0], first[1] | {"weight": 0}, second[0], second[1] | {"weight": 1}]},
        "parts": {"prompt": first + second[:1], "completion": second[1:]},
        "all": {"messages": first + second},
        "odd": {"messages": [first[0], first[1] | {"weight": "0"}]},
    }
    made = {}
    for name, line in written.items():
        (tmp_path / name).write_text(json.dumps(line) + "\n")
        r = radish("train", tiny, *flags(tmp_path / name, tmp_path / ("of-" + name), "--steps", "2"))
        assert (r.returncode == 0) == (name != "odd") and (name != "odd" or "weight must be 0 or 1" in r.err), r.err
        made[name] = bytes_of(tmp_path / ("of-" + name))["adapter_model.safetensors"] if name != "odd" else b""
    assert made["weights"] == made["parts"] != made["all"]


def test_numbers_of_16_bits_are_saved_so_and_resumed_to_the_same_bytes(radish, tiny, data, tmp_path):
    more = ["--bf16", "--steps", "8", "--save-every", "2", "--eval-share", "0.2", "--eval-every", "8"]
    r = radish("train", tiny, *flags(data, tmp_path / "a", *more))
    assert r.returncode == 0, r.err
    head = (tmp_path / "a/adapter_model.safetensors").read_bytes()[:4096]
    assert b'"BF16"' in head and b'"F32"' not in head
    p = radish.start("train", tiny, *flags(data, tmp_path / "b", *more), stderr=subprocess.PIPE)
    p.send_signal(signal.SIGINT)
    p.communicate()
    assert radish("train", tiny, *flags(data, tmp_path / "b", *more, "--resume")).returncode == 0
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")
    assert radish("train", tiny, *flags(data, tmp_path / "c", *more[1:])).returncode == 0
    sizes = [(tmp_path / x / "adapter_model.safetensors").stat().st_size for x in "ac"]
    assert sizes[0] < 0.6 * sizes[1]
    say = ["run", tiny, "abc 1 ", "--raw", "--temperature", "0", "-n", "8", "--lora"]
    assert radish(*say, "a=%s" % (tmp_path / "a")).out == radish(*say, "a=%s" % (tmp_path / "a/adapter.gguf")).out


def test_threads_and_memory_change_no_byte(radish, tiny, data, tmp_path):
    for name, more in {"a": ["-t", "1"], "b": ["-t", "3", "--memory", "1k"]}.items():
        assert radish("train", tiny, *flags(data, tmp_path / name, "--steps", "6", *more)).returncode == 0
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")


def test_killed_at_any_moment_it_resumes_to_the_same_bytes(radish, tiny, data, tmp_path):
    more = ["--epochs", "250" if LONG else "60", "--save-every", "9", "--eval-share", "0.2", "--eval-every", "20"]
    begin = time.monotonic()
    assert radish("train", tiny, *flags(data, tmp_path / "whole", *more)).returncode == 0
    took = time.monotonic() - begin
    want = bytes_of(tmp_path / "whole")
    chance = random.Random(5)
    for i in range(10 if LONG else 2):
        out = tmp_path / ("killed%d" % i)
        for kind in [signal.SIGKILL, signal.SIGINT, signal.SIGKILL] if i % 2 else [signal.SIGKILL] * 2:
            p = radish.start("train", tiny, *flags(data, out, *more, "--resume"), stderr=subprocess.PIPE)
            time.sleep(chance.uniform(0, took))
            p.send_signal(kind)
            err = p.communicate()[1].decode()
            if kind == signal.SIGINT and p.returncode == 130 and err:
                assert "--resume goes on" in err.splitlines()[-1]
        r = radish("train", tiny, *flags(data, out, *more, "--resume"))
        assert r.returncode == 0, r.err
        assert bytes_of(out) == want
        assert not [x for x in out.iterdir() if x.name not in [*FINAL, "loss.svg"]]


def test_what_is_there_is_not_overwritten(radish, tiny, data, tmp_path):
    assert radish("train", tiny, *flags(data, tmp_path / "a", "--steps", "2")).returncode == 0
    r = radish("train", tiny, *flags(data, tmp_path / "a", "--steps", "2"))
    assert r.returncode == 1 and "resume it, or choose another folder" in r.err
    r = radish("train", tiny, *flags(data, tmp_path / "a", "--steps", "3", "--resume"))
    assert r.returncode == 1 and "other options" in r.err
    c = tmp_path / "a/checkpoint.radish"
    c.write_bytes(c.read_bytes()[:-5])
    r = radish("train", tiny, *flags(data, tmp_path / "a", "--steps", "2", "--resume"))
    assert r.returncode == 1 and "damaged" in r.err


def test_what_is_other_than_the_checkpoints_is_named(radish, tiny, data, tmp_path):
    out, more = tmp_path / "a", ["--steps", "2"]
    assert radish("train", tiny, *flags(data, out, *more)).returncode == 0
    for other, says in (
        (["--steps", "4"], ["steps 2 there, 4 here"]),
        (["--lr", "1e-3", "--rank", "8"], ["lr 0.01 there, 0.001 here", "rank 4 there, 8 here"]),
        (["--targets", "q_proj,v_proj"], ["there, q_proj,v_proj here"]),
        (["--kv-type", "f32"], ["kv-type f16 there, f32 here"]),
        (["--schedule", "linear"], ["schedule cosine there, linear here"]),
    ):
        r = radish("train", tiny, *flags(data, out, *more, "--resume", *other))
        assert r.returncode == 1 and "other options" in r.err and all(x in r.err for x in says), r.err
    data.write_text(json.dumps({"text": "another"}) + "\n")
    r = radish("train", tiny, *flags(data, out, *more, "--resume"))
    assert r.returncode == 1 and "samples 24 there, 1 here" in r.err, r.err


def test_samples_of_which_nothing_is_left_are_told_with_the_limit(radish, tiny, tmp_path):
    """It is the model's context where that is shorter than --pass-tokens."""
    path = tmp_path / "long"
    path.write_text(json.dumps({"prompt": "the " * 600, "completion": "a"}) + "\n")
    r = radish("train", tiny, *flags(path, tmp_path / "a"))
    assert r.returncode == 1 and "in none of 1 is anything to be learned within 256 tokens" in r.err, r.err
    path.write_text(json.dumps({"text": "the " * 600}) + "\n")
    r = radish("train", tiny, *flags(path, tmp_path / "a", "--steps", "1"))
    assert r.returncode == 0 and "1 samples were longer than 256 tokens and were cut" in r.err, r.err


@pytest.mark.skipif("amx_bf16" not in Path("/proc/cpuinfo").read_text(), reason="this processor has no AMX")
def test_what_amx_computed_goes_on_with_amx_alone(radish, tiny, data, tmp_path):
    others = ["--cpu-isa", "avx512"]
    for name, made, resumed, says in [("a", [], others, "computed with AMX"), ("b", others, [], "--cpu-isa avx512")]:
        of = flags(data, tmp_path / name, "--steps", "2")
        assert radish("train", tiny, *of, *made).returncode == 0
        r = radish("train", tiny, *of, "--resume", *resumed)
        assert r.returncode == 1 and says in r.err, r.err


@pytest.mark.parametrize(
    "line, says",
    [
        ("{", "not JSON"),
        ("[1]", "no "),
        ('{"prompt": "x"}', "no "),
        ('{"messages": []}', "must be an array"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "no message of the assistant"),
        ('{"messages": [{"content": "x"}]}', "has no role"),
        ('{"prompt": [{"role": "user", "content": "x"}], "completion": "y"}', "both"),
        ('{"prompt": [], "completion": [{"role": "assistant", "content": "x"}]}', "no messages"),
        (
            '{"prompt": [{"role": "assistant", "content": "x"}], "completion": [{"role": "user", "content": "y"}]}',
            "compl",
        ),
        ('{"messages": [{"role": "assistant", "content": 5}]}', "content"),
    ],
)
def test_a_line_that_is_no_sample_is_named(radish, tiny, data, tmp_path, line, says):
    data.write_text('{"text": "abc"}\n\n' + line + "\n")
    r = radish("train", tiny, *flags(data, tmp_path / "a"))
    assert r.returncode == 1
    assert "line 3: " in r.err and says in r.err
    assert not (tmp_path / "a").exists()


def test_other_errors_are_clear(radish, tiny, data, tmp_path):
    for more, status, says in [
        ([], 2, "--data"),
        (["--data", data], 2, "-o DIR"),
        (["--data", "/nowhere", "-o", tmp_path / "a"], 1, "nowhere"),
        (["--data", data, "-o", tmp_path / "a", "--targets", "q_proj,eyes"], 1, 'target "eyes"'),
        (["--data", data, "-o", tmp_path / "a", "--lr", "0"], 1, "learning rate"),
        (["--data", data, "-o", tmp_path / "a", "--device", "cuda"], 1, "device cuda"),
        (["--data", data, "-o", tmp_path / "a", "--schedule", "x"], 2, "schedule"),
        (["--data", data, "-o", tmp_path / "a", "--lr", "1e30", "--clip", "0"], 1, "no number"),
    ]:
        r = radish("train", tiny, *more)
        assert r.returncode == status and says in r.err, (more, r.err)


def test_the_folder_is_the_users_own_affair(radish, tiny, data, tmp_path):
    """Its rights are as the umask has them, as of any folder; one for a group is taken. What cannot hold the result is told
    before anything is computed."""
    more = ["--steps", "1"]
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o775)
    for out in (shared, tmp_path / "new/below"):
        r = radish("train", tiny, *flags(data, out, *more), preexec_fn=lambda: os.umask(0o022))
        assert r.returncode == 0, r.err
    assert (tmp_path / "new/below").stat().st_mode & 0o777 == 0o755 and shared.stat().st_mode & 0o777 == 0o775
    (tmp_path / "file").write_text("")
    for out, says in (
        (tmp_path / "file", "no folder"),
        (tmp_path / "file/a", "cannot be made"),
        ("/proc/a", "cannot be made"),
    ):
        r = radish("train", tmp_path / "data.jsonl", *flags(tmp_path / "none.jsonl", out, *more))
        assert r.returncode == 1 and says in r.err and "cache" not in r.err, r.err


def test_a_byte_order_mark_before_the_first_line(radish, tiny, data, tmp_path):
    marked = tmp_path / "marked.jsonl"
    marked.write_bytes(b"\xef\xbb\xbf" + data.read_bytes())
    for path, out in ((data, "a"), (marked, "b")):
        r = radish("train", tiny, *flags(path, tmp_path / out, "--steps", "1"))
        assert r.returncode == 0, r.err
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")


def test_ctrl_c_ends_it_at_once_where_nothing_is_lost(radish, tiny, tmp_path):
    """While the data is read, and in a first step, which may take minutes; a second time in any step."""
    line = json.dumps({"text": "the other house and the river of it " * 6}) + "\n"
    many, some = tmp_path / "many.jsonl", tmp_path / "some.jsonl"
    many.write_text(line * 60000)
    some.write_text(line * 100)

    def begin(path, *more):
        return radish.start("train", tiny, *flags(path, tmp_path / "a", *more), stderr=subprocess.PIPE)

    p = begin(many, "--batch", "60000", "--steps", "1")
    time.sleep(0.5)
    p.send_signal(signal.SIGINT)
    assert p.wait(20) == 130
    assert not list((tmp_path / "a").iterdir())
    p = begin(some, "--batch", "100", "--steps", "3")
    assert b"1/3" in p.stderr.readline()
    p.send_signal(signal.SIGINT)
    assert p.stderr.readline() == b"\n" and b"once more" in p.stderr.readline()
    p.send_signal(signal.SIGINT)
    assert b"is saved" not in p.communicate()[1] and p.returncode == 130


def test_one_training_at_a_time_writes_into_a_folder(radish, tiny, data, tmp_path):
    """A second one takes nothing away from the first, which ends as if it had been alone."""
    more = ["--steps", "300", "--save-every", "1"]
    p = radish.start("train", tiny, *flags(data, tmp_path / "a", *more), stderr=subprocess.PIPE)
    assert b"30/300" in p.stderr.readline()
    p.send_signal(signal.SIGSTOP)
    ways = [[], ["--resume"], ["--resume", "--rank", "8"]]
    seconds = [radish("train", tiny, *flags(data, tmp_path / "a", *more, *how)) for how in ways]
    p.send_signal(signal.SIGCONT)
    for r in seconds:
        assert r.returncode == 1 and "a: another training writes there" in r.err, r.err
    p.communicate()
    assert p.returncode == 0
    assert radish("train", tiny, *flags(data, tmp_path / "b", *more)).returncode == 0
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")


@pytest.mark.parametrize("stays", [False, True])
def test_a_terminal_that_goes_away_ends_it_with_its_step_saved(radish, tiny, data, tmp_path, stays):
    """With nohup it goes on."""
    how = signal.SIG_IGN if stays else signal.SIG_DFL
    p = radish.start(
        "train",
        tiny,
        *flags(data, tmp_path / "a", "--steps", "300", "--save-every", "1000"),
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, how),
    )
    assert b"30/300" in p.stderr.readline()
    p.send_signal(signal.SIGHUP)
    p.communicate()
    assert p.returncode == (0 if stays else 130)
    n_steps = len((tmp_path / "a/log.jsonl").read_text().splitlines())
    assert n_steps == 300 if stays else 30 <= n_steps < 300


def test_samples_to_evaluate_with_that_are_none_are_told(radish, tiny, data, tmp_path):
    """Patience would wait for ever, and the adapter be the last one, not the best."""
    (tmp_path / "none").write_text("\n")
    for more, says in (
        (["--eval-data", tmp_path / "none"], "none: no sample to evaluate with"),
        (["--eval-share", "0.01"], "a share of 0.01 of 24 samples: none to evaluate with"),
    ):
        r = radish("train", tiny, *flags(data, tmp_path / "a", *more))
        assert r.returncode == 1 and says in r.err, r.err
        assert not (tmp_path / "a").exists()


def test_a_folder_that_cannot_be_made_is_told_why(radish, tiny, data):
    r = radish("train", tiny, *flags(data, "/sys/radish-adapter"))
    assert r.returncode == 1 and "/sys/radish-adapter: cannot be made: " in r.err and "No such file" not in r.err, r.err


def test_a_full_disk_leaves_what_was_saved(radish, tiny, data, tmp_path):
    out = tmp_path / "a"
    more = ["--steps", "4", "--save-every", "2"]
    assert radish("train", tiny, *flags(data, tmp_path / "b", *more)).returncode == 0

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))

    r = radish("train", tiny, *flags(data, out, *more), preexec_fn=small_files)
    assert r.returncode == 1 and "File too large" in r.err
    assert not (out / "checkpoint.radish").exists() and not (out / "adapter_config.json").exists()
    assert radish("train", tiny, *flags(data, out, *more, "--resume")).returncode == 0
    assert bytes_of(out) == bytes_of(tmp_path / "b")
