"""Starts radish serve and llama-server, and looks at them from outside: memory, CPU time, threads."""

import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import bench_http
from bench_common import isa_flags

TICKS = os.sysconf("SC_CLK_TCK")


def memory_mib(pid):
    """What /proc says: {"anon", "file", "shared", "peak"} in MiB."""
    found = {}
    for line in open("/proc/%d/status" % pid):
        key, _, value = line.partition(":")
        if key in ("RssAnon", "RssFile", "RssShmem", "VmHWM"):
            found[key] = int(value.split()[0]) / 1024
    return {"anon": found["RssAnon"], "file": found["RssFile"], "shared": found["RssShmem"], "peak": found["VmHWM"]}


def share_mib(pid):
    """Its proportional share of the memory it uses (PSS): what several processes map counts once over all of them."""
    for line in open("/proc/%d/smaps_rollup" % pid):
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def cpu_s(pid):
    """Seconds of CPU that a process and all of its threads have used."""
    with open("/proc/%d/stat" % pid) as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def cpu_ns(pid):
    """The same in nanoseconds, of the threads that are alive."""
    total = 0
    for task in os.listdir("/proc/%d/task" % pid):
        try:
            with open("/proc/%d/task/%s/schedstat" % (pid, task)) as f:
                total += int(f.read().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            pass  # ended between the two calls
    return total


class Server:
    """One server process; .port, .pid, .name. start() returns when /health answers 200."""

    def __init__(self, name, args, port, env=None):
        self.name, self.port, self.started = name, port, time.monotonic()
        self.log = tempfile.NamedTemporaryFile(prefix="bench-%s-" % name, suffix=".log", delete=False)
        self.args = [str(a) for a in args]
        self.process = subprocess.Popen(
            self.args,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
        )
        self.pid = self.process.pid

    def wait_ready(self, limit_s=300, poll_s=0.002):
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(
                    "%s: %s ended with %d:\n%s"
                    % (self.name, " ".join(self.args), self.process.returncode, Path(self.log.name).read_text()[-2000:])
                )
            try:
                if bench_http.get(self.port, "/health", timeout=2)[0] == 200:
                    return self
            except OSError:
                pass
            time.sleep(poll_s)
        raise RuntimeError("%s: not ready after %d s" % (self.name, limit_s))

    def memory(self):
        return memory_mib(self.pid)

    def cpu_s(self):
        return cpu_s(self.pid)

    def cpu_share(self, seconds):
        """Cores used over the next seconds."""
        before = self.cpu_s()
        time.sleep(seconds)
        return (self.cpu_s() - before) / seconds

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
        os.unlink(self.log.name)


_help = {}


def offers(program, command, flag):
    """Does the program's help mention the flag?"""
    key = (str(program), command)
    if key not in _help:
        r = subprocess.run([str(program), *([command] if command else []), "--help"], capture_output=True, text=True)
        _help[key] = r.stdout + r.stderr
    return flag in _help[key]


def radish_serve(a, model, port, *flags):
    program = a.build / "radish"
    return Server(
        "radish",
        [
            program,
            "serve",
            model,
            "--port",
            port,
            "--threads",
            a.threads,
            "--log-level",
            "warn",
            *isa_flags(a),
            *flags,
        ],
        port,
    )


def llama_server(a, programs, model, port, *flags):
    return Server(
        "llama.cpp",
        [
            programs / "llama-server",
            "-m",
            model,
            "--host",
            "127.0.0.1",
            "--port",
            port,
            "-t",
            a.threads,
            "-tb",
            a.threads,
            "--log-verbosity",
            "1",
            *flags,
        ],
        port,
    )
