"""radish list, show and rm over what was pulled; commands that find models by the names of a hub."""

import fcntl
import json
import os

import pytest

from hub_server import HubServer, git_sha, sha256
from test_pull import MODEL, SMALL, Pull, quants

REPO = "org/tiny"
TINY = "tests/golden/llama/tiny-llama.gguf"


@pytest.fixture
def hub(radish, root, tmp_path):
    """Pull, with a model that runs as REPO, Q8_0 by its name."""
    p = Pull(radish, tmp_path)
    p.folder = lambda repo=REPO: Pull.folder(p, repo)
    p.tiny = (root / TINY).read_bytes()
    p.commit = p.hub.add(REPO, {"tiny-Q8_0.gguf": p.tiny, "other-Q4_0.gguf": MODEL})
    yield p
    p.hub.close()


def names(hub):
    r = hub.radish("list", "--json", env=hub.env)
    assert r.returncode == 0, r.err
    return {e["name"]: e for e in json.loads(r.out)}


def rm(hub, *args, code=0):
    r = hub.radish("rm", *args, env=hub.env)
    assert r.returncode == code, (r.out, r.err)
    return r.out if code == 0 else r.err


def blobs(hub, repo=REPO):
    folder = hub.folder(repo) / "blobs"
    return sorted(os.listdir(folder)) if folder.exists() else None


# ---- list ----


def test_list_names_what_was_pulled_as_commands_take_it(hub):
    assert names(hub) == {}
    path = hub.ok(REPO + ":Q8_0")
    hub.hub.add("org/hf", {"config.json": SMALL, "model.safetensors": MODEL})
    folder = hub.ok("org/hf")
    hub.hub.add("org/same", {"a-Q4_0.gguf": MODEL, "b-Q4_0.gguf": MODEL[::-1], "plain.gguf": MODEL})
    for f in ("a-Q4_0.gguf", "b-Q4_0.gguf", "plain.gguf"):
        hub.ok("org/same/" + f)
    hub.hub.add("org/parts", {"m-Q8_0-%05d-of-00002.gguf" % i: MODEL for i in (1, 2)})
    hub.ok("org/parts")
    hub.hub.add(REPO, {"tiny-Q8_0.gguf": hub.tiny}, branch="v2")
    hub.ok(REPO + "@v2")
    hub.hub.add(REPO, {"tiny-Q8_0.gguf": hub.tiny + b"0"}, branch="refs/pr/3")
    pr = hub.ok(REPO, "--revision", "refs/pr/3")
    got = names(hub)
    assert set(got) == {
        "org/tiny:Q8_0",
        "org/tiny@v2:Q8_0",
        "org/tiny@%s:Q8_0" % pr.parent.name,
        "org/hf",
        "org/same/a-Q4_0.gguf",
        "org/same/b-Q4_0.gguf",
        "org/same/plain.gguf",
        "org/parts:Q8_0",
    }
    assert got["org/tiny:Q8_0"] == {
        "name": "org/tiny:Q8_0",
        "format": "gguf",
        "bytes": len(hub.tiny),
        "path": str(path),
    }
    assert got["org/hf"]["format"] == "safetensors" and got["org/hf"]["path"] == str(folder)
    assert got["org/parts:Q8_0"]["bytes"] == 2 * len(MODEL)
    for name, entry in got.items():  # every name is found again, at its path
        assert str(hub.ok(name, HF_HUB_OFFLINE="1")) == entry["path"], name


def test_a_name_sends_nothing_to_the_terminal(hub):
    hub.models.mkdir(exist_ok=True)
    (hub.models / "a\x1b]0;mine\x07\x1b[2J.gguf").write_bytes(hub.tiny)
    r = hub.radish("list", env=hub.env)
    assert r.returncode == 0 and "\x1b" not in r.out and "\x07" not in r.out
    assert "a\\x1b]0;mine" in r.out


def test_list_is_not_misled_by_what_lies_about(hub):
    hub.ok(REPO + ":Q8_0")
    for odd in (
        "models--x",
        "models--",
        "models------",
        "datasets--org--name",
        "models--a--b--c",
        "models--org--%s" % ("n" * 150),
    ):
        (hub.cache / odd / "snapshots" / ("0" * 40)).mkdir(parents=True)
    (hub.cache / "models--org--file").write_bytes(b"")
    (hub.cache / "models--org--link").symlink_to(hub.folder())
    bad = hub.cache / "models--org--bad"
    (bad / "refs").mkdir(parents=True)
    (bad / "refs/main").write_text("../../models--org--tiny/snapshots/x")
    (bad / "snapshots" / "short").mkdir(parents=True)
    loop = bad / "snapshots" / ("1" * 40)
    loop.mkdir()
    (loop / "x-Q8_0.gguf").symlink_to(loop / "x-Q8_0.gguf")
    (loop / "up").symlink_to("..")
    (loop / "gone-Q8_0.gguf").symlink_to("../../blobs/" + "0" * 64)
    os.mkfifo(loop / "pipe-Q8_0.gguf")
    assert list(names(hub)) == ["org/tiny:Q8_0"]


# ---- names ----


@pytest.mark.parametrize(
    "word", [REPO, REPO + ":q8_0", REPO + "/tiny-Q8_0.gguf", "hf.co/" + REPO + "@main:Q8_0", "mine"]
)
def test_commands_take_what_was_pulled(hub, word):
    hub.ok(REPO + ":Q8_0", "--name", "mine")
    r = hub.radish("run", word, "the of", "--max-tokens", "2", env=hub.env)
    assert r.returncode == 0 and r.out, r.err


def test_what_was_not_pulled_is_said_with_what_to_do(hub):
    for command in ("run", "chat", "serve", "inspect", "show"):
        r = hub.radish(command, REPO, env=hub.env)
        assert r.returncode == 1 and "radish pull " + REPO in r.err, r.err
    hub.ok(REPO + ":Q8_0")
    r = hub.radish("run", REPO + ":Q4_0", env=hub.env)
    assert r.returncode == 1 and "there is no Q4_0; there is: Q8_0" in r.err and "radish pull" in r.err
    r = hub.radish("run", "some/file.gguf", env=hub.env)
    assert r.returncode == 1 and "no such file" in r.err
    r = hub.radish("run", "smoll", env=hub.env)
    assert "org/tiny:Q8_0" in r.err


def test_a_server_is_called_as_it_was_started(hub):
    hub.ok(REPO + ":Q8_0", "--name", "mine")
    for word in (REPO + ":Q8_0", "mine"):
        p = hub.radish.start("serve", word, "--port", "0", stdout=-1, stderr=-1, text=True, env=hub.env)
        assert p.stdout.readline().startswith("radish serves ")
        line = next(line for line in p.stderr if "KV cache for" in line)
        p.terminate()
        p.communicate(timeout=60)
        assert " %s: " % word in line


# ---- show ----


def test_show_tells_where_it_came_from_and_whether_it_runs(hub):
    path = hub.ok(REPO + ":Q8_0", "--name", "mine")
    text = hub.radish("show", REPO, env=hub.env).out
    for word in ("mine, org/tiny:Q8_0", str(path), hub.commit, sha256(hub.tiny), "runs          yes"):
        assert word in text, text
    assert hub.radish("show", "mine", env=hub.env).out == text
    got = json.loads(hub.radish("show", "mine", "--json", env=hub.env).out)
    assert got["names"] == ["mine", "org/tiny:Q8_0"] and got["path"] == str(path) and got["commit"] == hub.commit
    assert got["files"] == [{"path": "tiny-Q8_0.gguf", "bytes": len(hub.tiny), "digest": sha256(hub.tiny)}]
    assert got["model"] and got["error"] is None
    hub.ok(REPO + ":Q4_0")
    r = hub.radish("show", REPO + ":Q4_0", env=hub.env)
    assert r.returncode == 0 and "runs          no: " in r.out
    assert json.loads(hub.radish("show", REPO + ":Q4_0", "--json", env=hub.env).out)["error"]


# ---- rm ----


def test_rm_takes_a_quantisation_and_leaves_the_others(hub):
    hub.ok(REPO + ":Q8_0", "--name", "mine")
    hub.ok(REPO + ":Q4_0")
    before = sorted(hub.home.rglob("*"))
    assert "would remove org/tiny:Q8_0" in rm(hub, REPO + ":Q8_0", "--dry-run")
    assert sorted(hub.home.rglob("*")) == before
    out = rm(hub, REPO + ":Q8_0")
    assert "removed org/tiny:Q8_0, %.1f MiB" % (len(hub.tiny) / 2**20) in out and "removed mine" in out
    assert list(names(hub)) == ["org/tiny:Q4_0"] and blobs(hub) == [sha256(MODEL)]
    assert "there is no Q8_0" in rm(hub, REPO + ":Q8_0", code=1)
    rm(hub, REPO + ":Q4_0")  # the last one: nothing is left
    assert not hub.folder().exists() and not list(hub.cache.rglob("*.lock"))
    assert "not in the cache" in rm(hub, REPO, code=1)


def test_rm_leaves_what_another_revision_has(hub):
    hub.hub.add(REPO, {"tiny-Q8_0.gguf": hub.tiny, "x.txt": SMALL, "d/e/y.txt": SMALL}, branch="v2")
    hub.ok(REPO + ":Q8_0")
    for what in (REPO + "@v2", REPO + "@v2/x.txt", REPO + "@v2/d/e/y.txt"):
        hub.ok(what)
    assert " 0.0 MiB" in rm(hub, REPO + "@v2:Q8_0", "--dry-run")
    rm(hub, REPO + "@v2:Q8_0")
    assert blobs(hub) == sorted([sha256(hub.tiny), git_sha(SMALL)])
    rm(hub, REPO + "@v2/d/e/y.txt")
    assert blobs(hub) == sorted([sha256(hub.tiny), git_sha(SMALL)]) and not list(hub.folder().rglob("d"))
    rm(hub, REPO + "@v2")
    assert blobs(hub) == [sha256(hub.tiny)] and not (hub.folder() / "refs/v2").exists()
    assert len(os.listdir(hub.folder() / "snapshots")) == 1
    assert hub.radish("run", REPO, "the", "--max-tokens", "1", env=hub.env).returncode == 0


def test_rm_of_all_takes_broken_pulls_along_and_no_more(hub):
    hub.ok(REPO + ":Q8_0")
    hub.hub.add("org/tiny2", {"x-Q8_0.gguf": MODEL})
    other = hub.ok("org/tiny2")
    (hub.folder() / "blobs" / ("0" * 64 + ".incomplete")).write_bytes(b"x" * (3 << 20))
    outside = hub.home / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"x")
    (hub.folder() / "blobs/link").symlink_to(outside)
    (hub.folder() / "snapshots" / hub.commit / "up").symlink_to(outside)
    out = rm(hub, REPO)
    assert "removed org/tiny, 3." in out
    assert not hub.folder().exists() and other.exists() and (outside / "precious").exists()
    assert list(names(hub)) == ["org/tiny2:Q8_0"]


def test_rm_waits_for_nobody_and_takes_nothing_from_a_pull(hub):
    path = hub.ok(REPO + ":Q8_0")
    fd = os.open(hub.folder(), os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)  # as a pull holds it
    assert "being pulled" in rm(hub, REPO, code=1) and "being pulled" in rm(hub, REPO + ":Q8_0", code=1)
    assert path.exists()
    os.close(fd)
    rm(hub, REPO)
    assert not path.exists()


def test_rm_of_names_and_files(hub):
    path = hub.ok(REPO + ":Q8_0", "--name", "mine")
    here = hub.home / "here.gguf"
    here.write_bytes(MODEL)
    hub.ok(str(here))
    for name in ("real.gguf", "s-00001-of-00002.gguf", "s-00002-of-00002.gguf", "s-00003-of-00002.gguf"):
        (hub.models / name).write_bytes(b"x" * (1 << 20))
    (hub.models / "folder").mkdir()
    (hub.models / "folder/config.json").write_text("{}")
    (hub.models / "folder/model.safetensors").write_bytes(b"x")
    assert "%s stays" % path in rm(hub, "mine") and path.exists()
    assert "stays" in rm(hub, "here") and here.exists()
    assert "removed real, 1.0 MiB" in rm(hub, "real")
    assert "removed s-00001-of-00002, 2.0 MiB" in rm(hub, "s-00001-of-00002")
    assert sorted(os.listdir(hub.models)) == ["folder", "s-00003-of-00002.gguf"]
    assert "rm -r" in rm(hub, "folder", code=1) and (hub.models / "folder/config.json").exists()
    for word in (str(here), "../here", "..", "nothing", "x/../y", "/"):
        assert rm(hub, word, code=1)
    assert here.exists() and path.exists()


def test_a_name_of_a_split_model_finds_its_parts(hub):
    hub.hub.add("org/parts", {"m-Q8_0-%05d-of-00002.gguf" % i: MODEL for i in (1, 2)})
    path = hub.ok("org/parts", "--name", "whole")
    r = hub.radish("show", "whole", env=hub.env)
    assert r.returncode == 0 and str(path) in r.out and "m-Q8_0-00002-of-00002.gguf" in r.out


def test_what_quantisations_are_there_decides_without_a_network(hub):
    hub.hub.add("org/many", quants(Q2_K=200, Q4_K_M=400))
    hub.ok("org/many:Q2_K")
    assert "Q2_K" in hub.ok("org/many", HF_HUB_OFFLINE="1").name
    hub.ok("org/many:Q4_K_M")
    assert "Q4_K_M" in hub.ok("org/many", HF_HUB_OFFLINE="1").name
    assert "Q2_K" in hub.ok("org/many", "--memory", str((512 << 20) + 250 * 1152), HF_HUB_OFFLINE="1").name
    assert hub.ok("org/many", "--memory", "1", HF_HUB_OFFLINE="1").exists()
