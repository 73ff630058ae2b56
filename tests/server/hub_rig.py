"""A server that may ask a hub, and that hub: tests/cli/hub_server.py."""

import os
import sys
import time

from radish_server import ROOT, TINY

sys.path.append(str(ROOT / "tests/cli"))
from hub_server import HubServer, sha256, stall, status, swap  # noqa: E402

REPO = "org/tiny-GGUF"
MODEL = b"GGUF\x03\0\0\0" + bytes(range(256)) * 1200  # 300 KiB
PATIENCE_S = 60


class Hub:
    """A server that asks a hub of its own, with a home of its own."""

    def __init__(self, make_server, home, *flags, **env):
        self.hub, self.home = HubServer(), home
        self.hub.add(REPO, {"tiny-Q4_K_M.gguf": MODEL, "tiny-Q8_0.gguf": MODEL + b"8", "README.md": b"# tiny"})
        own = {name: "" for name in os.environ if name.startswith(("HF_", "HUGGING", "TRANSFORMERS_"))}
        own |= {"HOME": str(home), "HF_HOME": str(home / "hf"), "HF_ENDPOINT": self.hub.url, "no_proxy": "*"}
        self.server = make_server("--threads", "1", "--kv-tokens", "1024", *flags, model=TINY, env=own | env)
        self.headers = {}

    def get(self, path):
        code, answer = self.server.get(path, self.headers)
        assert code == 200, answer
        return answer

    def start(self, model):
        return self.server.post("/v1/downloads", {"model": model}, self.headers)

    def one(self, i):
        return next(d for d in self.get("/v1/downloads")["data"] if d["id"] == i)

    def until(self, i, *states):
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            if self.one(i)["state"] in states:
                return self.one(i)
            time.sleep(0.02)
        raise AssertionError(self.one(i))

    def blob(self, data=MODEL):
        return self.home / "hf/hub/models--org--tiny-GGUF/blobs" / sha256(data)
