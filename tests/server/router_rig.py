"""Routers of SGLang and vLLM as child processes in front of radish servers."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

from radish_server import Server, free_port

# Of the Python that runs the tests, or of another environment that has them.
BIN = Path(os.environ.get("RADISH_ROUTERS", Path(sys.executable).parent))
# A server that ends is left out at once, and taken back within two seconds.
WATCH = {
    "--health-check-interval-secs": 1,
    "--health-failure-threshold": 1,
    "--health-success-threshold": 1,
    "--cb-failure-threshold": 1,
    "--cb-success-threshold": 1,
    "--cb-timeout-duration-secs": 1,
}


class Worker(Server):
    """A server that tells its KV events in the form that vLLM's router reads."""

    def __init__(self, *flags, **options):
        self.events, self.replay = free_port(), free_port()
        self.begin(*flags, **options)

    def begin(self, *flags, **options):
        super().__init__(
            "--kv-events",
            f"tcp://127.0.0.1:{self.events}",
            "--kv-events-replay",
            f"tcp://127.0.0.1:{self.replay}",
            "--kv-events-form",
            "maps",
            *flags,
            **options,
        )
        self.flags, self.options = flags, options

    def again(self):
        """Started again where it was."""
        new = Worker.__new__(Worker)
        new.events, new.replay = self.events, self.replay
        new.begin(*self.flags, **self.options | {"port": self.port, "wait": True})
        return new

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"


class Router(Server):
    """It speaks as a server does. kind: "sglang" or "vllm"; workers: what it leads to."""

    def __init__(self, kind, policy, workers, *more, log=subprocess.DEVNULL):
        self.port, self.workers = free_port(), workers
        program = {"sglang": "sglang-router", "vllm": "vllm-router"}[kind]
        assert (BIN / program).exists(), f"{BIN / program} is missing: tools/install-needs --tests"
        launch = [BIN / program] if kind == "vllm" else [BIN / program, "launch"]
        flags = ["--host", "127.0.0.1", "--port", self.port, "--prometheus-port", free_port(), "--policy", policy]
        for name, value in WATCH.items():
            flags += [name, value]
        flags += more
        if kind == "vllm":
            flags += ["--max-concurrent-requests", 1000]
        if policy == "kv_aware":
            flags += ["--kv-event-model", workers[0].get("/v1/models")[1]["data"][0]["id"]]
            for w in workers:
                flags += ["--kv-event-source", f"{w.url}=tcp://127.0.0.1:{w.events}"]
                flags += ["--kv-event-replay-source", f"{w.url}=tcp://127.0.0.1:{w.replay}"]
        self.process = subprocess.Popen(
            [*map(str, launch), "--worker-urls", *(w.url for w in workers), *map(str, flags)],
            stdout=log,
            stderr=log,
        )
        try:
            self.wait_all()
        except BaseException:
            self.process.kill()
            raise

    def wait_all(self, seconds=60):
        """Until all workers are healthy."""
        end = time.monotonic() + seconds
        while True:
            assert self.process.poll() is None, "the router ended by itself"
            with contextlib.suppress(OSError, ValueError):
                known = self.get("/workers")[1]["workers"]
                if sum(w["is_healthy"] for w in known) == len(self.workers):
                    return
            assert time.monotonic() < end, "the router does not find its workers"
            time.sleep(0.1)

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:  # it waits for connections that are kept
            self.process.kill()
            self.process.wait(10)
