"""What `radish serve` is set to: command line, environment, configuration file, defaults, in this order."""

import os
import re
import tomllib

import pytest

ROWS = re.compile(r"^(#? ?)([a-z-]+) = (.*?)    # (.*)$", re.M)


@pytest.fixture
def ask(radish, tmp_path):
    """What --print-config says: {key: (value or None, source)}; HOME is empty."""

    def run(*flags, file=None, env=None, folder=None):
        path = tmp_path / "r.toml"
        if file is not None:
            path.write_text(file)
            flags = ("--config", path, *flags)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("RADISH_", "XDG_"))}
        r = radish(
            "serve",
            *flags,
            "--print-config",
            env=clean | {"HOME": str(folder or tmp_path)} | (env or {}),
        )
        r.values = {}
        if r.returncode == 0:
            parsed = tomllib.loads(r.out)  # what it prints is such a file, which another parser reads the same
            r.values = {key: (parsed.get(key), source) for _, key, _, source in ROWS.findall(r.out)}
        return r

    return run


def test_each_source_wins_over_those_below(ask):
    assert ask().values["port"] == (8000, "default")
    r = ask(file="port = 1")
    assert r.values["port"][0] == 1 and r.values["port"][1].endswith("r.toml:1")
    assert ask(file="port = 1", env={"RADISH_PORT": "2"}).values["port"] == (2, "$RADISH_PORT")
    assert ask("--port", "3", file="port = 1", env={"RADISH_PORT": "2"}).values["port"] == (3, "command line")
    assert ask("-p", "3", file="port = 1").values["port"] == (3, "command line")


def test_every_kind_of_value_has_its_place_in_the_file(ask):
    r = ask(
        file="""# all kinds
models = ["a", "b"]          # words
kv-bytes = "1.5G"
cache-disk = 1_000
threads = 3
cache-verify = 0.25
no-speculation = true
no-replay = false
kv-type = 'q8_0'
allow-host = [ "x.example",
               "y.example" ]
"""
    )
    assert r.returncode == 0, r.err
    got = {k: v for k, (v, source) in r.values.items() if source != "default"}
    assert got == {
        "models": ["a", "b"],
        "kv-bytes": 3 << 29,
        "cache-disk": 1000,
        "threads": 3,
        "cache-verify": 0.25,
        "no-speculation": True,
        "no-replay": False,
        "kv-type": "q8_0",
        "allow-host": ["x.example", "y.example"],
    }
    again = ask(file=r.out)  # its own output is a file that means the same
    assert {k: v for k, (v, _) in again.values.items()} == {k: v for k, (v, _) in r.values.items()}


def test_lists_are_taken_whole_from_one_source(ask):
    file = 'allow-host = ["a", "b"]\nmodels = ["m"]'
    assert ask(file=file, env={"RADISH_ALLOW_HOST": "c, d,e"}).values["allow-host"] == (
        ["c", "d", "e"],
        "$RADISH_ALLOW_HOST",
    )
    r = ask("x", "--allow-host", "f", "--allow-host", "g", file=file, env={"RADISH_ALLOW_HOST": "c"})
    assert r.values["allow-host"] == (["f", "g"], "command line")
    assert r.values["models"] == (["x"], "command line")


def test_switches_can_be_taken_back(ask):
    on = "no-speculation = true"
    assert ask(file=on).values["no-speculation"][0] is True
    assert ask(file=on, env={"RADISH_NO_SPECULATION": "false"}).values["no-speculation"][0] is False
    assert ask(file=on, env={"RADISH_NO_SPECULATION": "0"}).values["no-speculation"][0] is False
    assert ask("--no-speculation=false", file=on).values["no-speculation"] == (False, "command line")
    assert ask("--no-speculation", env={"RADISH_NO_SPECULATION": "0"}).values["no-speculation"][0] is True
    assert "takes no value" in ask("--no-speculation=no").err


def test_every_flag_of_serve_has_a_variable_and_a_key(radish, ask):
    flags = set(re.findall(r"^  (?:-\w, )?--([a-z-]+)", radish("serve", "--help").out, re.M))
    assert flags - set(ask().values) == {"help", "config", "print-config"}
    for key, (_, source) in ask(env={"RADISH_" + f.upper().replace("-", "_"): "" for f in flags}).values.items():
        assert source in ("default", "command line"), key  # empty: not set


def test_keys_are_never_printed(ask):
    secrets = "sk-in-file", "sk-in-variable", "sk-in-line"
    for r in (
        ask(file='api-key = "sk-in-file"'),
        ask(env={"RADISH_API_KEY": "sk-in-variable"}),
        ask("--api-key", "sk-in-line"),
        ask(file='api-key = ["sk-in-file"]'),
        ask(file="api-key = true # sk-in-file"),
    ):
        assert not any(s in r.out + r.err for s in secrets), r.out
    assert "# api-key = (set, not shown)    # $RADISH_API_KEY" in ask(env={"RADISH_API_KEY": "sk-in-variable"}).out


@pytest.mark.parametrize(
    "file,told",
    [
        ("port = 1\nkv-byte = 3", "r.toml:2: unknown key kv-byte; did you mean kv-bytes?"),
        ("kv_bytes = 3", "r.toml:1: unknown key kv_bytes; did you mean kv-bytes?"),
        ("something-else = 3", "r.toml:1: unknown key something-else\n"),
        ("config = 'x'", "r.toml:1: unknown key config\n"),
        ("model = 'x'", "r.toml:1: unknown key model; did you mean models?"),
        ("port = 65536", 'r.toml:1: port: got "65536", wanted a whole number from 0 to 65535'),
        ("port = true", 'r.toml:1: port: got "true", wanted a whole number'),
        ("no-replay = 1", 'r.toml:1: no-replay: got "1", wanted true or false'),
        ("kv-bytes = 'lots'", 'r.toml:1: kv-bytes: got "lots", wanted a size in bytes'),
        ("log-level = 'loud'", 'r.toml:1: log-level: got "loud", wanted one of error|warn|info|debug'),
        ("port = [1]", "r.toml:1: port takes one value, no list"),
        ("[server]\nport = 1", "r.toml:1: [tables] are not taken"),
        ("port 1", "r.toml:1: wanted: key = value"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_line(ask, file, told):
    r = ask(file=file)
    assert r.returncode == 2 and told in r.err, r.err


def test_what_is_wrong_in_the_environment_is_told_by_its_variable(ask):
    r = ask(env={"RADISH_PORT": "x"})
    assert r.returncode == 2 and 'RADISH_PORT: port: got "x", wanted a whole number' in r.err
    r = ask(env={"RADISH_NO_REPLAY": "perhaps"})
    assert r.returncode == 2 and "RADISH_NO_REPLAY" in r.err
    assert ask(env={"RADISH_PORT": "tcp://10.0.0.1:8000"}).values["port"] == (8000, "default")  # of Kubernetes


def test_the_file_is_found_where_it_is_said_to_be(ask, tmp_path):
    home = tmp_path / "home"
    (home / ".config/radish").mkdir(parents=True)
    (home / ".config/radish/radish.toml").write_text("port = 1")
    other = tmp_path / "xdg"
    (other / "radish").mkdir(parents=True)
    (other / "radish/radish.toml").write_text("port = 2")
    (tmp_path / "said.toml").write_text("port = 3")
    assert ask(folder=home).values["port"][0] == 1
    assert ask(folder=home, env={"XDG_CONFIG_HOME": str(other)}).values["port"][0] == 2
    said = {"RADISH_CONFIG": str(tmp_path / "said.toml"), "XDG_CONFIG_HOME": str(other)}
    assert ask(folder=home, env=said).values["port"][0] == 3
    assert ask(folder=home, env={"RADISH_CONFIG": ""}).values["port"][0] == 8000
    assert ask(folder=home, env=said, file="port = 4").values["port"][0] == 4
    r = ask("--config", tmp_path / "missing.toml", folder=home)
    assert r.returncode == 2 and "missing.toml" in r.err


def test_help_helps_with_a_file_that_is_wrong(radish, tmp_path):
    (tmp_path / "bad.toml").write_text("x")
    r = radish("serve", "--config", tmp_path / "bad.toml", "--help")
    assert r.returncode == 0 and "--print-config" in r.out


def test_a_server_is_started_by_its_file_alone(radish, tmp_path, root):
    """To the point where the address shows that the file was read: an address that cannot be had."""
    (tmp_path / "r.toml").write_text(f'models = ["{root}/tests/golden/llama/tiny-llama.gguf"]\nhost = "192.0.2.1"\n')
    r = radish("serve", "--config", tmp_path / "r.toml")
    assert r.returncode == 1 and "192.0.2.1" in r.err
    (tmp_path / "r.toml").write_text("port = 1\n")
    r = radish("serve", "--config", tmp_path / "r.toml")
    assert r.returncode == 2 and "MODEL is missing" in r.err


# ---- variables that are nobody's ----


def test_a_mistyped_variable_is_told_with_the_nearest_name(ask, radish):
    r = ask(env={"RADISH_PROT": "1"})
    assert r.returncode == 0 and r.values["port"] == (8000, "default")
    assert r.err == "radish: the environment has RADISH_PROT, which radish does not know; did you mean RADISH_PORT?\n"
    r = ask(env={"RADISH_CASHE": "", "RADISH_FROBNICATE": "x", "RADISH_": "x", "RADISH_\x1b[31mX": "x"})
    assert "RADISH_CASHE, which radish does not know; did you mean RADISH_CACHE?\n" in r.err
    assert "RADISH_FROBNICATE, which radish does not know\n" in r.err and "\x1b" not in r.err
    assert r.err.count("\n") == 4


def test_what_is_known_and_what_kubernetes_sets_is_not_told(ask):
    r = ask(
        env={
            "RADISH_PORT": "tcp://10.0.0.1:80",
            "RADISH_PORT_8000_TCP_ADDR": "10.0.0.1",
            "RADISH_SERVICE_HOST": "10.0.0.1",
            "RADISH_WEB_SERVICE_PORT_HTTP": "80",
            "RADISH_WEB_PORT": "tcp://10.0.0.1:80",
            "RADISH_KV_BYTES": "1G",
            "RADISH_MODELS": "/m",
            "RADISH_LONG": "1",
        }
    )
    assert r.returncode == 0 and r.err == ""


def test_no_variable_of_our_programs_and_tools_is_told(ask, root):
    reads = re.compile(r"""(?:environ\[|environ\.get\(|getenv\(|"\$\{?)"?(RADISH_[A-Z_]+)""")
    names = set()
    for folder in ("tools", "python", "src", "tests/support", "tests/cli"):
        for path in (root / folder).rglob("*"):
            if path.suffix in (".py", ".c", ".h", ".sh", "") and path.is_file():
                names |= set(reads.findall(path.read_text(errors="replace")))
    assert len(names) > 10
    r = ask(env={name: "" for name in names - {"RADISH_CONFIG"}})
    assert r.returncode == 0 and r.err == ""


# ---- commands that share the server's file ----


@pytest.fixture
def run(radish, tmp_path, root):
    tiny = root / "tests/golden/llama/tiny-llama.gguf"

    def ask(command, file, *words, stdin="x\n", **env):
        (tmp_path / "r.toml").write_text(file.replace("TINY", str(tiny)))
        clean = {k: v for k, v in os.environ.items() if not k.startswith("RADISH_")} | {"RADISH_CACHE": ""}
        env = clean | {"HOME": str(tmp_path), "RADISH_CONFIG": str(tmp_path / "r.toml")} | env
        return radish(command, *(str(tiny) if w == "TINY" else w for w in words), stdin=stdin, env=env)

    return ask


def test_run_and_chat_take_what_they_have_a_flag_for(run):
    wrong = 'kv-type = "nonsense"'
    for command, words in (("run", ("TINY", "x", "--max-tokens", "2")), ("chat", ("TINY", "--max-tokens", "2"))):
        r = run(command, "port = 9\nadmin-key = 'k'\nthreads = 1", *words)
        assert r.returncode == 0, r.err
        r = run(command, wrong, *words)
        assert r.returncode != 0 and "nonsense" in r.err
        assert run(command, wrong, *words, "--kv-type", "f16").returncode == 0  # flags win
        assert run(command, wrong, *words, RADISH_CONFIG="").returncode == 0
        r = run(command, "ctxx = 5", *words)
        assert r.returncode == 2 and "r.toml:1: unknown key ctxx; did you mean ctx?" in r.err
        assert run(command, "seed = 5", *words).returncode == 2  # a server would not start with it
        assert run(command, "", *words, RADISH_KV_TYPE="nonsense").returncode == 0


def test_the_first_of_the_models_stands_for_one_that_is_not_named(run):
    file = "models = ['TINY', 'other']"
    assert run("chat", file, "--max-tokens", "2").returncode == 0
    r = run("run", file, "--max-tokens", "2", "--raw", stdin="a prompt")
    assert r.returncode == 0, r.err
    r = run("run", file, "nothing", "x")
    assert r.returncode == 1 and "nothing" in r.err
