"""Some kinds of damage of tests/attack/damaged_folders.py; all of them with RADISH_LONG=1."""

import os
import time

import damaged_folders


def test_a_server_starts_on_damaged_folders_and_answers_right():
    failed, n_kinds = damaged_folders.run(None if os.environ.get("RADISH_LONG") else 20, int(time.time()))
    assert failed == 0 and n_kinds >= 130
