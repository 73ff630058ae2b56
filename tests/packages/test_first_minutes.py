"""docs/first-ten-minutes.md, as a fresh user lives it: its commands run as they stand, on a throwaway machine.

The hub is tests/cli/hub_server.py with the tests' model; the page is opened in headless Chromium. The machine has a network
of its own, so that port 8000 is free.
"""

import re
import subprocess
import sys
from pathlib import Path

import chromium
import pytest
import throwaway

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```sh\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
HUB = """
import sys
sys.path.insert(0, sys.argv[1])
from hub_server import HubServer
hub = HubServer()
hub.add("bartowski/SmolLM2-135M-Instruct-GGUF", {"SmolLM2-135M-Instruct-Q4_1.gguf": open(sys.argv[2], "rb").read()})
print(hub.url, flush=True)
sys.stdin.read()
hub.close()
"""


@pytest.fixture
def machine(debs):
    with throwaway.machine([debs["radish"]], net=True) as m:
        m(
            "mkdir bin; command -v sudo >/dev/null || { printf '#!/bin/sh\\nexec \"$@\"\\n' >bin/sudo; chmod 755 bin/sudo; }"
        )
        yield m


@pytest.fixture
def hub(machine, model):
    words = [*machine.network, sys.executable, "-c", HUB, str(ROOT / "tests/cli"), str(model)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as p:
        yield p.stdout.readline().strip()
        p.stdin.close()


@pytest.fixture
def browser(machine, tmp_path, monkeypatch):
    """chromium.py starts a browser that is on the machine's network."""
    assert chromium.program(), "chromium is not installed"
    script = tmp_path / "chromium"
    script.write_text('#!/bin/sh\nexec {} {} "$@"\n'.format(" ".join(machine.network), chromium.program()))
    script.chmod(0o755)
    monkeypatch.setattr(chromium, "program", lambda: str(script))
    return chromium.Page


def matches(wanted, printed):
    pattern = ".*".join(map(re.escape, wanted.rstrip("\n").split("...")))
    return re.fullmatch(pattern, printed.rstrip("\n"), re.DOTALL)


def look(browser):
    """The page shows the two requests that were made; so does its console: nothing is wrong."""
    with browser() as p:
        p.open("http://127.0.0.1:8000/")
        p.until("document.querySelectorAll('#recent tr').length >= 2")
        assert p.run("document.title").startswith("radish")
        p.open("http://127.0.0.1:8000/chat")
        p.until("document.querySelector('#state')?.textContent == 'Ready'")
        assert p.problems == []


def test_the_page_is_true(machine, hub, browser):
    blocks = BLOCK.findall((ROOT / "docs/first-ten-minutes.md").read_text())
    assert len(blocks) >= 7 and sum("kill %1" in code for code, _ in blocks) == 1
    env = {"HF_ENDPOINT": hub, "no_proxy": "*", "RADISH_CACHE": ""}
    with subprocess.Popen(
        machine.words("exec bash -e -s 2>errors", env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as shell:
        for code, wanted in blocks:
            if "kill %1" in code:
                look(browser)
            shell.stdin.write(code + "echo '@@@ end'\n")
            shell.stdin.flush()
            printed = ""
            while not printed.endswith("@@@ end\n"):
                line = shell.stdout.readline()
                assert line, f"{code}\n{printed}\n" + machine("tail -n 30 errors serve.log")
                printed += line
            printed = printed.removesuffix("@@@ end\n")
            if wanted:
                assert matches(wanted, printed), f"{code}\n{printed}"
        shell.stdin.close()
        assert shell.wait(60) == 0
    assert machine("command -v radish || echo gone") == "gone\n"
    assert machine("find home -name '*.gguf'") == ""
