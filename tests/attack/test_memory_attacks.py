"""The attacks on memory in their short form; with RADISH_LONG=1 a minute each."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import big_bodies  # noqa: E402
import fill_store  # noqa: E402
import grammar_flood  # noqa: E402
import key_flood  # noqa: E402
import tree_bomb  # noqa: E402

SECONDS, CLIENTS = (60, 32) if os.environ.get("RADISH_LONG") else (3, 8)


def test_F21_key_flood():
    key_flood.attack(SECONDS, CLIENTS)


def test_F20_tree_bomb():
    tree_bomb.attack(SECONDS, CLIENTS)


def test_F91_big_bodies():
    big_bodies.attack(SECONDS, CLIENTS)


def test_F91_grammar_flood():
    grammar_flood.attack(SECONDS, CLIENTS)


def test_F91_fill_store(tmp_path):
    fill_store.attack(SECONDS, CLIENTS, tmp_path)
