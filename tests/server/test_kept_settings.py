"""POST /v1/settings with "save": what the model's next load takes is in the configuration file, for the next start."""

import os
import tomllib
from concurrent.futures import ThreadPoolExecutor

import pytest
from radish_server import TINY
from test_next_load import SETTINGS, by_name

FILE = """# of this machine
threads = 1        # one is enough
kv-tokens = 1024   # not many
  max-queue = "64" # small

api-key-file = 'KEYS'
"""


@pytest.fixture
def config(tmp_path):
    (tmp_path / "keys").write_text("alice-key\n")
    path = tmp_path / "radish.toml"
    path.write_text(FILE.replace("KEYS", str(tmp_path / "keys")))
    path.chmod(0o640)
    return path


@pytest.fixture
def start(make_server, config):
    def run(*flags, **more):
        return make_server("--config", str(config), "--api-key", "own", *flags, model=TINY, **more)

    return run


OWN = {"Authorization": "Bearer own"}


def save(s, settings, **more):
    return s.post(SETTINGS, {"settings": settings, "save": True} | more, OWN)


def test_what_is_kept_holds_at_the_next_start_and_the_rest_of_the_file_stays(start, config):
    s = start()
    before = config.read_text()
    told = s.get(SETTINGS, OWN)[1]
    assert told["config"] == {"file": str(config), "refused": ""}
    assert by_name(told)["kv-tokens"]["source"] == "file" and by_name(told)["ctx"]["source"] == "default"
    assert s.post(SETTINGS, {"settings": {"ctx": 64}}, OWN)[0] == 200
    assert config.read_text() == before  # nothing is kept that nobody asked to keep
    status, answer = save(s, {"kv-tokens": 2048, "kv-type": "bf16", "max-queue": ""})
    assert status == 200, answer
    assert by_name(answer)["ctx"]["kept"] == "64" and by_name(answer)["kv-tokens"]["kept"] == "2048"
    wanted = before.replace("1024", "2048").replace('  max-queue = "64" ', "")
    text = config.read_text()
    assert text.startswith(wanted) and sorted(text[len(wanted) :].split("\n")) == ["", "ctx = 64", 'kv-type = "bf16"']
    assert config.stat().st_mode & 0o777 == 0o640 and [p for p in config.parent.iterdir() if "part" in p.name] == []
    s.stop()
    known = by_name(start().get(SETTINGS, OWN)[1])
    assert [known[k]["now"] for k in ("ctx", "kv-tokens", "kv-type", "max-queue")] == ["64", "2048", "bf16", ""]


def test_what_others_write_meanwhile_stays_and_null_is_what_the_file_had(start, config):
    s = start()
    assert save(s, {"kv-tokens": 2048})[0] == 200
    config.write_text(config.read_text() + "# theirs\nport = 1\n")
    assert save(s, {"ctx": 64, "kv-tokens": None})[0] == 200
    parsed = tomllib.loads(config.read_text())
    assert (parsed["port"], parsed["ctx"], parsed["kv-tokens"]) == (1, 64, 1024) and "# theirs" in config.read_text()
    config.write_text("port = \n")
    status, answer = save(s, {"ctx": 32})
    assert status == 409 and "file:1" in answer["error"]["message"] and config.read_text() == "port = \n"
    assert by_name(s.get(SETTINGS, OWN)[1])["ctx"]["next"] == "64"


@pytest.mark.parametrize("source", ["flag", "environment"])
def test_flags_win_so_what_they_say_cannot_be_kept(start, config, source):
    s = start("--ctx", "128") if source == "flag" else start(env={"RADISH_CTX": "128"})
    before = config.read_bytes()
    status, answer = save(s, {"ctx": 64, "max-running": 3})
    message = answer["error"]["message"]
    assert status == 409 and answer["error"]["param"] == "save" and "--ctx is set by" in message, answer
    assert ("command line" if source == "flag" else "RADISH_CTX") in message and "nothing was changed" in message
    known = by_name(s.get(SETTINGS, OWN)[1])
    assert (known["ctx"]["next"], known["max-running"]["next"], known["ctx"]["source"]) == ("128", "", source)
    assert config.read_bytes() == before
    assert s.post(SETTINGS, {"settings": {"ctx": 64}}, OWN)[0] == 200  # until it ends it may be so
    assert save(s, {"ctx": 128, "max-running": 3})[0] == 200  # as the flag says: nothing to keep of it
    assert "ctx" not in tomllib.loads(config.read_text()) and "max-running = 3" in config.read_text()


def test_a_file_that_may_not_be_written_is_told_and_nothing_changes(start, config):
    s = start()
    before = config.read_bytes()
    config.chmod(0o440)
    status, answer = save(s, {"ctx": 64})
    assert status == 409 and "read-only" in answer["error"]["message"], answer
    assert "read-only" in s.get(SETTINGS, OWN)[1]["config"]["refused"]
    config.chmod(0o640)
    hindrance = config.with_name(f"{config.name}.part-{s.process.pid}")
    hindrance.mkdir()  # a disk that does not take it
    status, answer = save(s, {"ctx": 64})
    assert status == 409 and "cannot be written" in answer["error"]["message"], answer
    hindrance.rmdir()
    assert config.read_bytes() == before and by_name(s.get(SETTINGS, OWN)[1])["ctx"]["next"] == ""
    assert save(s, {"ctx": 64})[0] == 200


def test_settings_that_no_load_can_have_are_not_kept(start, config):
    s = start()
    assert save(s, {"kv-type": "bf16", "ctx": 128}, reload=True)[0] == 200
    s.wait_until(lambda: not s.get(SETTINGS, OWN)[1]["reloading"])
    assert save(s, {"kv-type": "q8_0", "max-running": 3}, reload=True)[0] == 200  # too short heads for its blocks
    s.wait_until(lambda: not s.get(SETTINGS, OWN)[1]["reloading"])
    known = by_name(s.get(SETTINGS, OWN)[1])
    assert known["kv-type"]["kept"] == known["kv-type"]["now"] == "bf16"
    assert tomllib.loads(config.read_text())["kv-type"] == "bf16"
    s.stop()
    assert by_name(start().get(SETTINGS, OWN)[1])["kv-type"]["now"] == "bf16"


def test_without_a_file_the_first_that_is_looked_for_is_made(make_server, tmp_path):
    flags = ("--threads", "1", "--kv-tokens", "1024")
    before = ("env", "-u", "RADISH_CONFIG", "-u", "XDG_CONFIG_HOME", f"HOME={tmp_path}")
    s = make_server(*flags, model=TINY, before=before)
    path = tmp_path / ".config/radish/radish.toml"
    assert s.get(SETTINGS)[1]["config"] == {"file": str(path), "refused": ""} and not path.exists()
    assert s.post(SETTINGS, {"settings": {"ctx": 64}, "save": True})[0] == 200
    assert path.read_text() == "ctx = 64\n" and path.stat().st_mode & 0o777 == 0o600
    s.stop()
    s = make_server(*flags, model=TINY, before=before)
    assert by_name(s.get(SETTINGS)[1])["ctx"]["now"] == "64"
    s.stop()
    s = make_server(*flags, model=TINY)  # RADISH_CONFIG is empty: none is wanted
    status, answer = s.post(SETTINGS, {"settings": {"ctx": 32}, "save": True})
    assert status == 409 and "RADISH_CONFIG" in answer["error"]["message"] and path.read_text() == "ctx = 64\n"


def test_a_link_stays_a_link(start, config):
    real = config.rename(config.with_name("real.toml"))
    config.symlink_to(real.name)
    assert save(start(), {"ctx": 64})[0] == 200
    assert os.readlink(config) == real.name and "ctx = 64" in real.read_text()


def test_many_at_once_leave_a_whole_file(start, config):
    s = start()
    names = ["ctx", "max-running", "kv-tokens", "max-queue", "cache-ram"]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda i: save(s, {names[i % 5]: 64 + i})[0], range(60)))
    assert answers == [200] * 60
    parsed, known = tomllib.loads(config.read_text()), by_name(s.get(SETTINGS, OWN)[1])
    assert all(str(parsed[name]) == known[name]["kept"] == known[name]["next"] for name in names)


def test_only_who_runs_the_server_keeps_anything(start, config):
    s = start()
    before = config.read_bytes()
    body = {"settings": {"ctx": 64}, "save": True}
    assert s.post(SETTINGS, body)[0] == 401
    assert s.post(SETTINGS, body, {"Authorization": "Bearer alice-key"})[0] == 403
    assert s.post(SETTINGS, body, OWN | {"Origin": "https://evil.example"})[0] == 403
    assert s.post(SETTINGS, {"settings": {"ctx": 64}, "save": 1}, OWN)[0] == 400
    assert s.post(SETTINGS, {"settings": {"ctx": "x"}, "save": True}, OWN)[0] == 400
    assert config.read_bytes() == before
