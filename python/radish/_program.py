"""`radish`, the program that lies in this package."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    program = Path(__file__).resolve().parent / "bin/radish"
    os.execv(program, [str(program), *sys.argv[1:]])
