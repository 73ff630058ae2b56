#!/usr/bin/env python3
"""make_capi.py INCLUDE OUT [CC]: the public C API as a Python module for cffi, made of the headers in INCLUDE/radish.

Names, structs and their layouts come from the headers that the library was built with; nothing is written down twice.
"""

import re
import subprocess
import sys
from pathlib import Path

from cffi import FFI

# How a thread of Python waits for radish's: sem_post is the `wake` of requests, which takes no lock of Python's.
LIBC = """
int sem_init(void *, int, unsigned); int sem_post(void *); int sem_wait(void *); int sem_trywait(void *);
int sem_destroy(void *);
"""


def main(include, out, cc="cc"):
    seen = set()

    def inline(name):
        if name in seen:
            return ""
        seen.add(name)
        text = Path(include, name).read_text()
        text = re.sub(r'#include "(radish/[\w.]+)"', lambda m: inline(m[1]), text)
        return re.sub(r"#include <.*>", "", text)

    source = inline("radish/radish.h") + inline("radish/flat.h")
    words = [cc, "-E", "-P", "-U__GNUC__", "-DUINT32_MAX=4294967295u", "-x", "c", "-"]
    text = subprocess.run(words, input=source, capture_output=True, text=True, check=True).stdout
    text = re.sub(r"#pragma.*", "", text)
    ffi = FFI()
    ffi.cdef(text + LIBC)
    ffi.set_source("radish._capi", None)
    ffi.emit_python_code(out)
    Path(out).write_text("# mypy: ignore-errors\n" + Path(out).read_text())


if __name__ == "__main__":
    main(*sys.argv[1:])
