"""--shared-prefix: public prompts are found under every API key; the rest of a tenant's cache is its own, also on disk."""

import json
import signal
import stat
import time

import pytest
from radish_server import Server

TEXT = "/v1/completions"
PUBLIC = (
    "This long beginning was written by the operator of this server, and everybody may know that it is stored here. "
    * 3
)
ALICE, BOB, OWN = ({"Authorization": f"Bearer {k}-key"} for k in ("alice", "bob", "own"))


@pytest.fixture
def files(tmp_path):
    keys, shared = tmp_path / "keys", tmp_path / "shared.jsonl"
    keys.write_text("alice-key\nbob-key\n")
    shared.write_text(json.dumps({"prompt": PUBLIC}) + "\n")
    return (
        "--api-key",
        "own-key",
        "--api-key-file",
        keys,
        "--shared-prefix",
        shared,
        "--threads",
        "1",
        "--kv-tokens",
        "4096",
    )


def cached(server, headers, prompt):
    status, _, body = server.request("POST", TEXT, {"prompt": prompt, "max_tokens": 1, "temperature": 0}, headers)
    answer = json.loads(body)
    assert status == 200, body
    return answer["timings"]["cache_n"], answer["usage"]["prompt_tokens"]


def warmed(server):
    for _ in range(400):
        tree = json.loads(server.request("GET", "/stats", headers=OWN)[2])["tree"]
        if tree["kept_day"] > 50:
            return tree["kept_day"]
        time.sleep(0.05)
    raise AssertionError(tree)


def pages(server):
    return json.loads(server.request("GET", "/stats", headers=OWN)[2])["disk"]["pages"]


def test_the_public_part_is_shared_and_nothing_else(files):
    s = Server(*files)
    n_public = warmed(s)
    for who in ALICE, BOB:
        n, n_prompt = cached(s, who, PUBLIC + "A question that only this tenant asks.")
        assert n_public - 2 <= n <= n_public < n_prompt  # its last token may become another one with what follows
    n, n_prompt = cached(s, BOB, PUBLIC + "A question that only this tenant asks.")
    assert n == n_prompt  # its own, by now
    own = "A beginning that is nobody's but Alice's, and long enough to fill a page or two of the cache. " * 2
    assert cached(s, ALICE, own)[0] == 0 and cached(s, BOB, own)[0] == 0
    assert 5 < cached(s, ALICE, "This long beginning was written by somebody else.")[0] < 12
    status, _, body = s.request("POST", "/v1/cache/explain", {"prompt": PUBLIC + "Never asked."}, ALICE)
    assert status == 200 and json.loads(body)["stored_tokens"] >= n_public - 2
    s.process.send_signal(signal.SIGTERM)
    assert s.process.wait(60) == 0


def test_wrong_files_are_told(tmp_path):
    for text, what in (
        ("{}\n", "one of messages and prompt"),
        ('{"prompt": "x", "cache_salt": "y"}\n', "no cache_salt"),
    ):
        file, log = tmp_path / "wrong.jsonl", tmp_path / "log"
        file.write_text(text)
        with open(log, "wb") as out:
            s = Server("--shared-prefix", file, wait=False, log=out)
            assert s.process.wait(60) == 1
        assert "--shared-prefix: " in log.read_text() and "line 1" in log.read_text() and what in log.read_text()


def test_a_tenants_disk_cache_survives_kill_9(files, tmp_path):
    folder, own = tmp_path / "kv", "Something that Alice alone has asked, in many words, again and again. " * 8
    s = Server(*files, "--cache-dir", folder)
    n, n_prompt = cached(s, ALICE, own)
    assert n == 0
    seen = [0, -1]  # hers and the public ones: until no more come
    while seen[-1] < n_prompt // 16 or seen[-1] != seen[-2]:
        time.sleep(0.3)
        seen.append(pages(s))
    key = (folder / "salt.key").read_bytes()
    assert len(key) == 40 and stat.S_IMODE((folder / "salt.key").stat().st_mode) == 0o600
    s.process.kill()
    s.process.wait()
    s = Server(*files, "--cache-dir", folder)
    assert (folder / "salt.key").read_bytes() == key
    assert cached(s, BOB, own)[0] == 0
    assert (
        n_prompt // 16 * 16 <= cached(s, ALICE, own)[0] <= n_prompt
    )  # from disk; its end, if that was written in time
    s.process.kill()
    s.process.wait()
    (folder / "salt.key").write_bytes(
        bytes(40)
    )  # as a power cut may leave it: a new one, and the old pages are nobody's
    s = Server(*files, "--cache-dir", folder)
    assert len((folder / "salt.key").read_bytes()) == 40 and (folder / "salt.key").read_bytes() != bytes(40)
    assert cached(s, ALICE, own)[0] == 0
    s.process.kill()
    s.process.wait()
