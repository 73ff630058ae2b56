"""A limit on threads is named: it was told as a lack of memory."""

import os
import resource
import shutil
import tempfile
from pathlib import Path

import pytest

TINY = Path(__file__).resolve().parents[1] / "golden/llama/tiny-llama.gguf"
NOBODY = 61234  # a user without processes: root has no such limit, and others' count


def one_process():
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


@pytest.mark.parametrize("line", [("run", "hi", "-n", "1"), ("serve", "--port", "0"), ("bench", "-p", "8", "-n", "2")])
def test_a_limit_on_threads_is_named(radish, line):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        for path in (radish.path, TINY):
            os.chmod(shutil.copy(path, folder), 0o755)
        copied = type(radish)()
        copied.path = folder + "/radish"
        r = copied(
            line[0], folder + "/" + TINY.name, *line[1:], cwd=folder, preexec_fn=one_process, env={"HOME": folder}
        )
        assert r.returncode == 1 and "limit on processes and threads is reached (ulimit -u" in r.err, r.err
        assert "memory" not in r.err
