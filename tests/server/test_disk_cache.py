"""The disk cache of a server: restart, kill -9, damage, another KV type on the same folder, two servers at once."""

import contextlib
import os
import random
import signal
import stat
import subprocess
import time

import pytest

from radish_server import BUILD, Server, free_port, model_path

PROMPT = "The quick brown fox jumps over the lazy dog, and %d other animals watch it. " * 30 % tuple(range(30))
BODY = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "seed": 1}


@pytest.fixture()
def folder(tmp_path):
    return tmp_path / "kv"


@contextlib.contextmanager
def serving(folder, *flags):
    server = Server("--cache-dir", str(folder), *flags)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()


def ask(server):
    answer = server.ok("/v1/completions", BODY)
    return answer["choices"][0]["text"], answer["timings"]


def kill(server):
    server.process.send_signal(signal.SIGKILL)
    server.process.wait(60)


def written(server, n_pages):
    """Waits until what was computed is on disk."""
    for _ in range(200):
        disk = server.stats()["disk"]
        if disk["pages"] >= n_pages:
            return disk
        time.sleep(0.02)
    raise AssertionError(disk)


def verified(server, n_hits):
    """Waits until so many hits were computed again and compared."""
    for _ in range(2400):
        verify = server.stats()["verify"]
        if verify["verified"] >= n_hits:
            break
        time.sleep(0.02)
    assert verify["mismatches"] == verify["waiting"] == verify["skipped"] == 0
    assert verify["verified"] == n_hits
    return verify


def test_it_survives_a_restart_and_a_kill(folder):
    with serving(folder) as server:
        text, timings = ask(server)
        assert timings["cache_n"] == 0
        n_prompt = timings["prompt_n"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(f.stat().st_mode) == 0o600 for f in folder.iterdir())
    with serving(folder, "--cache-verify", "1") as server:
        again, timings = ask(server)
        assert again == text
        assert timings["prompt_n"] == 0  # all of it, with the hidden state at its end
        assert timings["cache_n"] == timings["cache_disk_n"] == n_prompt
        assert server.stats()["disk"]["prompt_tokens"] == timings["cache_disk_n"]
        assert verified(server, 1)["tokens"] == timings["cache_n"]
        ask(server)
        assert verified(server, 2)["tokens"] == 2 * n_prompt
        kill(server)
    with serving(folder, "--kv-type", "f32") as server:  # pages of another kind find nothing, and do no harm
        _, timings = ask(server)
        assert timings["cache_n"] == 0
        written(server, timings["prompt_n"] // 16)
        kill(server)
    with serving(folder) as server:
        again, timings = ask(server)
        assert again == text and timings["cache_disk_n"] == n_prompt
        assert server.stats()["disk"]["damaged"] == 0


def test_damage_is_computed_again(folder):
    with serving(folder) as server:
        text, _ = ask(server)
    rng = random.Random(7)
    for path in folder.iterdir():
        data = bytearray(path.read_bytes())
        for _ in range(20):
            if data:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(data[: len(data) - len(data) // 5]))
    with serving(folder) as server:
        again, timings = ask(server)
        assert again == text
        assert timings["cache_n"] < 500
        assert server.stats()["disk"]["damaged"] > 0


def test_two_servers_share_a_folder_and_one_inherits_it(folder):
    with serving(folder) as first:
        text, timings = ask(first)
        written(first, timings["prompt_n"] // 16)
        with serving(folder) as second:
            assert first.stats()["disk"]["is_writer"] == 1
            assert second.stats()["disk"]["is_writer"] == 0
            again, timings = ask(second)
            assert again == text and timings["cache_disk_n"] > 0
            first.stop()
            for _ in range(100):
                if second.stats()["disk"]["is_writer"]:
                    break
                time.sleep(0.1)
            assert second.stats()["disk"]["is_writer"] == 1


def test_without_a_usable_folder_it_serves(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with serving(tmp_path / "file") as server:
        assert ask(server)[1]["cache_n"] == 0
        assert server.stats()["disk"]["cap_bytes"] == 0
    os.mkdir(tmp_path / "off", 0o700)
    with serving(tmp_path / "off", "--no-disk-cache") as server:
        ask(server)
    assert not list((tmp_path / "off").iterdir())


def test_explain_tells_what_is_on_disk_and_with_which_kv_type(folder):
    with serving(folder) as server:
        n_prompt = ask(server)[1]["prompt_n"]
        written(server, n_prompt // 16)
    with serving(folder) as server:  # nothing in memory, all of it on disk
        told = server.ok("/v1/cache/explain", BODY)
        assert told["stored_tokens"] == 0 and told["disk_tokens"] == n_prompt // 16 * 16 and told["cause"] == "none"
        assert told["lost_tokens"] == n_prompt % 16
        longer = server.ok("/v1/cache/explain", {"prompt": PROMPT + PROMPT})
        assert longer["cause"] == "different" and longer["disk_tokens"] == n_prompt // 16 * 16
        changed = server.ok("/v1/cache/explain", {"prompt": "x" + PROMPT})
        assert changed["disk_tokens"] == 0 and changed["cause"] == "new" and "stored_kv_type" not in changed
        assert server.stats()["disk"]["pages_read"] == 0  # it asked, and loaded nothing
        assert ask(server)[1]["cache_disk_n"] >= told["disk_tokens"]
    with serving(folder, "--kv-type", "q8_0") as server:
        told = server.ok("/v1/cache/explain", BODY)
        assert told["cause"] == "kv_type" and told["stored_kv_type"] == "f16" and told["lost_tokens"] == n_prompt
        assert server.ok("/v1/cache/explain", {"prompt": "x" + PROMPT})["cause"] == "new"
        assert server.ok("/v1/cache/explain", BODY | {"cache_salt": "mine"})["cause"] == "new"
        written(server, 2 * (ask(server)[1]["prompt_n"] // 16))
        assert server.ok("/v1/cache/explain", BODY)["cause"] == "none"
    with serving(folder, "--kv-type", "f16/q8_0") as server:
        assert server.ok("/v1/cache/explain", BODY)["cause"] == "kv_type"


def test_a_cleared_conversation_is_gone_from_disk_as_well(folder):
    first, second = PROMPT + "The first of them slept. " * 5, PROMPT + "The second of them ran. " * 5
    with serving(folder) as server:
        for prompt in (first, second):
            server.ok("/v1/completions", BODY | {"prompt": prompt})
        status, _, answer = server.request("DELETE", "/v1/cache", {"prompt": first})
        assert status == 200 and b'"disk_entries":' in answer and b'"disk_entries":0' not in answer
    with serving(folder) as server:
        n = server.ok("/v1/cache/explain", {"prompt": first})
        m = server.ok("/v1/cache/explain", {"prompt": second})
        assert m["cause"] == "none" and m["lost_tokens"] < 16
        assert n["cause"] == "different" and 0 < n["disk_tokens"] < n["prompt_tokens"] - 30  # what both begin with
        again = server.ok("/v1/completions", BODY | {"prompt": first})["timings"]
        assert again["prompt_n"] > 30 and server.stats()["disk"]["damaged"] == 0


def test_pages_kept_as_integers_are_told_and_never_mixed(folder):
    with serving(folder, "--store-kv", "q8_0") as server:
        text, timings = ask(server)
        assert ask(server)[0] == text
        n_prompt = timings["prompt_n"]
    size = sum(f.stat().st_blocks for f in folder.glob("*.pages"))
    with serving(folder, "--store-kv", "q8_0") as server:
        again, timings = ask(server)
        assert timings["cache_disk_n"] == n_prompt
        assert timings["cache_lossy_n"] == n_prompt // 16 * 16 - 256
        explained = server.ok("/v1/cache/explain", BODY)
        assert explained["lossy_tokens"] == timings["cache_lossy_n"]
        short = server.ok("/v1/completions", {**BODY, "prompt": PROMPT[:500]})
        assert "cache_lossy_n" not in short["timings"]
    with serving(folder) as server:  # exact pages have another name
        exact, timings = ask(server)
        assert timings["cache_n"] == 0 and "cache_lossy_n" not in timings
        assert exact == text  # which was computed
    exact_size = sum(f.stat().st_blocks for f in folder.glob("*.pages")) - size
    assert size < 0.8 * exact_size  # 0.54 behind the first 256 tokens
    process = subprocess.run(
        [
            BUILD / "radish",
            "serve",
            model_path(),
            "--port",
            str(free_port()),
            "--kv-type",
            "q8_0",
            "--store-kv",
            "q8_0",
            "--cache-dir",
            str(folder),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 1
    assert "store_kv q8_0 is for keys and values in f16" in process.stderr
