"""Writes hub_golden.json: what the `tokenizers` package says about the eight families and about single components.

    python make_hub_golden.py FOLDER        FOLDER: one folder per family with tokenizer.json.xz in it

Per family: a digest of the ids and of the decoded texts of 5,000 hard strings (in tens of 500), and per component case a
digest of both over 150 strings. A string that makes the package itself fail ("bad split" and other panics) counts as
empty in both; a case that makes it take all memory, or cut
every text everywhere, is null and left out. The strings and cases are made anew from their seeds: hard_strings.py, component_cases.py.
"""

import hashlib
import json
import lzma
import os
import resource
import sys
from pathlib import Path

from component_cases import ADDED, component_cases
from hard_strings import hard_strings

HERE = Path(__file__).parent
GROUP = 500


def digest(values):
    return hashlib.sha256(json.dumps(values, separators=(",", ":")).encode()).hexdigest()[:16]


def groups(values):
    return [digest(values[i : i + GROUP]) for i in range(0, len(values), GROUP)]


def component_strings():
    return [s[:200] for s in hard_strings(ADDED, 150)]


def answers(tokenizer, texts):
    """[ids], [decoded with special tokens], [decoded without]; None where the package fails."""
    ids, full, plain = [], [], []
    for text in texts:
        try:
            one = tokenizer.encode(text, add_special_tokens=True).ids
            decoded = [tokenizer.decode(one, skip_special_tokens=skip) for skip in (False, True)]
        except BaseException as e:
            if isinstance(e, KeyboardInterrupt):
                raise
            one, decoded = None, [None, None]
        ids.append(one)
        full.append(decoded[0])
        plain.append(decoded[1])
    return ids, full, plain


def component(tokenizer):
    ids, full, plain = answers(tokenizer, component_strings())
    return {
        "fails": [i for i, v in enumerate(ids) if v is None],
        "ids": digest(ids),
        "full": digest(full),
        "plain": digest(plain),
    }


def has_empty(tokenizer, config):
    """An added token of which the normalizer leaves nothing: the package then cuts the text at every place."""
    return any(
        t["normalized"] and tokenizer.normalizer and not tokenizer.normalizer.normalize_str(t["content"])
        for t in config["added_tokens"]
    )


def apart(work):
    """In a process of its own with 4 GiB: for some cases the package takes all memory. None then."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        os.write(writing, json.dumps(work()).encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None


def main(folder):
    from tokenizers import Tokenizer, __version__

    golden = {"tokenizers": __version__, "families": {}, "components": {}}
    for family in sorted(p.name for p in Path(folder).iterdir() if p.is_dir()):
        text = lzma.open(Path(folder) / family / "tokenizer.json.xz").read().decode()
        tokenizer = Tokenizer.from_str(text)
        texts = hard_strings([t["content"] for t in json.loads(text)["added_tokens"]])
        ids, full, plain = answers(tokenizer, texts)
        golden["families"][family] = {
            "file": hashlib.sha256(text.encode()).hexdigest()[:16],
            "ids": groups(ids),
            "full": groups(full),
            "plain": groups(plain),
        }
    for name, config in component_cases():
        tokenizer = Tokenizer.from_str(json.dumps(config))
        golden["components"][name] = None if has_empty(tokenizer, config) else apart(lambda: component(tokenizer))
    (HERE / "hub_golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
