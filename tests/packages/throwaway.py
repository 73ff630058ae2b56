"""A Debian machine to install packages on: this one, on which nothing that is written stays.

    with throwaway.machine([deb, ...]) as m:        # the files lie in m.folder there
        m("apt-get install -y ./*.deb")             # bash -e, in m.folder, with a home of its own; returns what it printed

The root of this machine under an overlay in memory, in a mount and a process namespace of its own: what was started ends, and
what was written is gone, with the block. That wants root (or sudo) and mounts. A container that may not mount takes the machine
itself, which is what such a container is for, unless the packages are on it; they are purged at the end.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

PACKAGES = ["radish", "libradish0", "libradish-dev"]
SUDO = [] if os.geteuid() == 0 else ["sudo", "-n"]
HOLD = """
set -e
mount -t tmpfs -o mode=755 tmpfs "$1"
mkdir "$1/up" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=/,upperdir=$1/up,workdir=$1/work" overlay "$1/root"
for place in dev sys; do mount --rbind "/$place" "$1/root/$place"; done
mount -t proc proc "$1/root/proc"
mount -t tmpfs tmpfs "$1/root/run"
mount -t tmpfs -o mode=1777 tmpfs "$1/root/tmp"
mkdir -p "$1/root/tmp/here/home"
shift
while [ $# -gt 0 ]; do cp "$1" "$root/tmp/here/"; shift; done
echo ready
exec sleep infinity
"""


class Failed(AssertionError):
    pass


def run(words, **kw):
    r = subprocess.run([str(w) for w in words], capture_output=True, text=True, **kw)
    if r.returncode:
        raise Failed(f"{words}: exit status {r.returncode}\n{r.stdout}{r.stderr}")
    return r.stdout


class Machine:
    """enter: the words that lead to the place where commands run."""

    def __init__(self, enter, folder):
        self.enter, self.folder = enter, folder

    def words(self, script, env=None):
        """What Popen takes to run a script there, with what programs may want of a user's environment."""
        env = {
            "HOME": self.folder + "/home",
            "PATH": self.folder + "/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "DEBIAN_FRONTEND": "noninteractive",
            "LANG": "C.UTF-8",
            **(env or {}),
        }
        words = [f"{k}={v}" for k, v in env.items()]
        return [*self.enter, "env", "-i", *words, "bash", "-e", "-c", f"cd {self.folder}\n{script}"]

    def __call__(self, script, env=None, timeout=300):
        return run(self.words(script, env), stdin=subprocess.DEVNULL, timeout=timeout)


@contextlib.contextmanager
def overlay(files):
    with tempfile.TemporaryDirectory() as mount:
        holder = subprocess.Popen(
            [*SUDO, "unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
            + ["env", f"root={mount}/root", "bash", "-c", HOLD, "hold", mount, *map(str, files)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            if holder.stdout.readline() != "ready\n":
                raise Failed("no mounts here: " + holder.communicate()[1])
            inside = next(p for p in descendants(holder.pid) if comm(p) == "sleep")
            try:
                yield Machine([*SUDO, "nsenter", "-t", str(inside), "-m", "-p", "chroot", f"{mount}/root"], "/tmp/here")
            finally:
                run([*SUDO, "kill", "-KILL", inside])  # the first process of its namespace: all others go with it
        finally:
            holder.communicate()


def comm(pid):
    return Path(f"/proc/{pid}/comm").read_text().strip()


def descendants(pid):
    """Of that process, itself included; waits until the last of them sleeps."""
    for _ in range(100):
        found = [pid]
        for p in found:
            with contextlib.suppress(OSError):
                found += map(int, Path(f"/proc/{p}/task/{p}/children").read_text().split())
        if any(comm(p) == "sleep" for p in found):
            return found
        time.sleep(0.02)
    raise Failed("the holder of the mounts is not there")


@contextlib.contextmanager
def itself(files):
    have = subprocess.run(["dpkg-query", "-W", *PACKAGES], capture_output=True, text=True).stdout
    assert not have.strip(), f"installed on this machine, which would be purged: {have}"
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        Path(folder, "home").mkdir()
        for file in files:
            shutil.copy(file, folder)
        try:
            yield Machine(SUDO, folder)
        finally:
            subprocess.run([*SUDO, "apt-get", "purge", "-y", *PACKAGES], capture_output=True)


def may_mount():
    words = [*SUDO, "unshare", "--mount", "--pid", "--fork", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(words, capture_output=True).returncode == 0


def machine(files):
    kind = os.environ.get("RADISH_THROWAWAY") or ("overlay" if may_mount() else "itself")
    return {"overlay": overlay, "itself": itself}[kind](files)
