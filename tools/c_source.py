"""What check-includes and check-sizes share: finding the sources, and reading C without its comments and strings."""

import re
from pathlib import Path

SUFFIXES = {".c", ".h", ".cu", ".cuh"}

# A comment, a string or a character, whichever begins first.
TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def files(root, folders, suffixes=SUFFIXES):
    """All sources below the folders of root, as paths relative to it, sorted."""
    found = []
    for folder in folders:
        found += [p.relative_to(root) for p in (Path(root) / folder).rglob("*") if p.suffix in suffixes and p.is_file()]
    return sorted(found)


def read(root, path):
    return (Path(root) / path).read_text(encoding="utf-8", errors="replace")


def without_comments(text):
    """Comments become blanks; lines keep their numbers."""
    return TOKEN.sub(lambda m: re.sub(r"[^\n]", " ", m[0]) if m[0][0] == "/" else m[0], text)


def bare_code(text):
    """Comments, and what is inside strings and characters, become blanks; lines keep their numbers."""

    def blank(m):
        if m[0][0] == "/":
            return re.sub(r"[^\n]", " ", m[0])
        return m[0][0] + re.sub(r"[^\n]", " ", m[0][1:-1]) + m[0][-1]

    return TOKEN.sub(blank, text)


def line_of(text, at):
    return text.count("\n", 0, at) + 1
