"""Many files looked through by one clang: starting it takes three times as long as a file does."""

import os
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor

AT_ONCE = 24


def run(words, directory):
    r = subprocess.run(words, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return r.returncode, r.stdout


def frontend(words, file, directory):
    """What `clang WORDS FILE` would run, without the file; None if that is not one program."""
    code, said = run([*words, "-###", file], directory)
    lines = [shlex.split(line) for line in said.splitlines() if line.startswith(' "')]
    if code or "warning:" in said or len(lines) != 1 or "-cc1" not in lines[0] or lines[0][-1] != file:
        return None
    at = lines[0].index("-main-file-name")
    return lines[0][:at] + lines[0][at + 2 : -1]


def look_through(job):
    (directory, words), files = job
    cc1 = frontend(words, files[0], directory)
    if cc1 and run([*cc1, *files], directory)[0] == 0:
        return [(0, "")]
    return [run([*words, file], directory) for file in files]  # each for itself: one's errors hide another's warnings


def check(entries):
    """Of (directory, words, file), files with the same words together: the exit status and the output of each that has any."""
    groups = {}
    for directory, words, file in entries:
        groups.setdefault((directory, tuple(words)), []).append(file)
    jobs = [(key, files[i : i + AT_ONCE]) for key, files in groups.items() for i in range(0, len(files), AT_ONCE)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(look_through, jobs):
            yield from found
