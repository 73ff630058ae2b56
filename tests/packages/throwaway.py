"""A Debian machine to install packages on: this one, on which nothing that is written stays.

    with throwaway.machine([deb, ...]) as m:        # the files lie in m.folder there
        m("apt-get install -y ./*.deb")             # bash -e, in m.folder, with a home of its own; returns what it printed

The root of this machine under an overlay in memory, in a mount and a process namespace of its own: what was started ends, and
what was written is gone, with the block; with net=True it has a network of its own, which is itself alone. That wants root (or sudo)
that may mount; in a container: CAP_SYS_ADMIN.
"""

import contextlib
import os
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
rm -f "$1/root/var/lib/man-db/auto-update"    # the index of all man pages, anew after each package
shift
while [ $# -gt 0 ]; do cp "$1" "$root/tmp/here/"; shift; done
[ -z "$net" ] || ip link set lo up
echo ready
exec cat >/dev/null
"""


class Failed(AssertionError):
    pass


def run(words, **kw):
    r = subprocess.run([str(w) for w in words], capture_output=True, text=True, **kw)
    if r.returncode:
        raise Failed(f"{words}: exit status {r.returncode}\n{r.stdout}{r.stderr}")
    return r.stdout


class Machine:
    """enter: the words that lead to the place where commands run; network: those that lead to its network alone."""

    def __init__(self, enter, folder, network=()):
        self.enter, self.folder, self.network = enter, folder, network

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
def machine(files, net=False):
    namespaces = ["--mount", "--pid"] + ["--net"] * net
    with tempfile.TemporaryDirectory() as mount:
        holder = subprocess.Popen(
            [*SUDO, "unshare", *namespaces, "--fork", "--kill-child", "--propagation", "private"]
            + ["env", f"root={mount}/root", f"net={'own' * net}", "bash", "-c", HOLD, "hold", mount, *map(str, files)],
            stdin=subprocess.PIPE,  # it stays until this is closed, by whatever end of ours
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            if holder.stdout.readline() != "ready\n":
                raise Failed(
                    "mounts are not permitted here (root? in a container, CAP_SYS_ADMIN?): " + holder.communicate()[1]
                )
            inside = next(p for p in descendants(holder.pid) if comm(p) == "cat")
            nsenter = [*SUDO, "nsenter", "-t", str(inside)]
            network = [*nsenter, "-n"] if net else []
            yield Machine([*(network or nsenter), "-m", "-p", "chroot", f"{mount}/root"], "/tmp/here", network)
        finally:
            holder.communicate()  # the first process of its namespace ends: all others go with it


def comm(pid):
    return Path(f"/proc/{pid}/comm").read_text().strip()


def descendants(pid):
    """Of that process, itself included; waits until the last of them holds."""
    for _ in range(100):
        found = [pid]
        for p in found:
            with contextlib.suppress(OSError):
                found += map(int, Path(f"/proc/{p}/task/{p}/children").read_text().split())
        if any(comm(p) == "cat" for p in found):
            return found
        time.sleep(0.02)
    raise Failed("the holder of the mounts is not there")
