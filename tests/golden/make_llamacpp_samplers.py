#!/usr/bin/env python3
"""Makes tests/golden/samplers/llamacpp.txt: what llama.cpp's samplers leave of random rows of 48 tokens.

Usage: LLAMA_CPP_LIB_PATH=... make_llamacpp_samplers.py SMOLLM2.gguf OUT.txt      (needs llama-cpp-python)

    cut LETTERS k p m y s x : logits : survivors       what the samplers of LETTERS leave, in that order (xtc always acts)
    dry multiplier base allowed last_n : history : breaker tokens : breaker pairs (x y x y ..) : logits : best token after

All numbers by spaces; lists end with "." Tokens of the histories are letters and signs of the model's vocabulary,
numbered anew from 0; a pair is a breaker of two characters. Rows whose outcome hangs on rounding are left out.
"""

import ctypes
import random
import sys

import llama_cpp as L
import numpy as np

N = 48


def apply(samplers, logits, ids=None):
    data = (L.llama_token_data * len(logits))()
    for i, v in enumerate(logits):
        data[i].id, data[i].logit, data[i].p = (ids[i] if ids else i), v, 0.0
    array = L.llama_token_data_array(data, len(logits), -1, False)
    for s in samplers:
        L.llama_sampler_apply(s, ctypes.byref(array))
    return [(array.data[i].id, array.data[i].logit) for i in range(array.size)]


def cuts(rng):
    logits = [float(np.float32(round(rng.gauss(0, 2), 3))) for _ in range(N)]
    k, p, m, y = rng.randint(1, 30), rng.uniform(0.1, 0.98), rng.uniform(0.01, 0.3), rng.uniform(0.1, 0.95)
    s, x = rng.uniform(0.3, 2.5), rng.uniform(0.01, 0.4)
    numbers = [float(np.float32(v)) for v in (p, m, y, s, x)]
    p, m, y, s, x = numbers
    make = {
        "k": lambda: L.llama_sampler_init_top_k(k),
        "p": lambda: L.llama_sampler_init_top_p(p, 0),
        "m": lambda: L.llama_sampler_init_min_p(m, 0),
        "y": lambda: L.llama_sampler_init_typical(y, 0),
        "s": lambda: L.llama_sampler_init_top_n_sigma(s),
        "x": lambda: L.llama_sampler_init_xtc(1.0, x, 0, 1),
    }
    letters = "".join(rng.sample("kpmysx", rng.choice((1, 1, 2, 3))))
    if "y" in letters[letters.find("s") + 1 :] and "s" in letters:
        return None  # typ_p takes the entropy of tokens at -inf: not a number
    results = []
    for shift in (0, 1e-5, -1e-5):  # the same with every bound a little off?
        p, m, y, s, x = (v * (1 + shift) for v in numbers)
        results.append(sorted(t for t, v in apply([make[c]() for c in letters], logits) if v > -1e30))
    if results[0] != results[1] or results[0] != results[2] or not 1 <= len(results[0]) <= 24:
        return None
    return (
        f"cut {letters} {k} {' '.join('%.9g' % v for v in numbers)} "
        f"{' '.join('%.4g' % v for v in logits)} {' '.join(map(str, results[0]))} ."
    )


def dry(rng, vocab, ids, texts):
    n_kinds = rng.randint(2, 6)
    history = [rng.randrange(n_kinds) if rng.random() < 0.93 else rng.randrange(N) for _ in range(rng.randint(0, 60))]
    singles = rng.sample(range(N), rng.randint(0, 2))
    pairs = [tuple(rng.sample(range(n_kinds), 2)) for _ in range(rng.randint(0, 1))]
    breakers = [texts[t] for t in singles] + [texts[a] + texts[b] for a, b in pairs]
    multiplier, base = rng.choice((0.4, 0.8, 1.5)), rng.choice((1.0, 1.25, 1.75, 2.5))
    allowed, last_n = rng.randint(0, 4), rng.choice((-1, -1, 7, 20, 40))
    array = (ctypes.c_char_p * max(len(breakers), 1))(*breakers)
    s = L.llama_sampler_init_dry(vocab, multiplier, base, allowed, 64 if last_n < 0 else last_n, array, len(breakers))
    for t in history:
        L.llama_sampler_accept(s, ids[t])
    logits = [float(np.float32(round(rng.uniform(0, 3), 3))) for _ in range(N)]
    after = sorted(apply([s], logits, ids), key=lambda e: -e[1])
    L.llama_sampler_free(s)
    if after[0][1] - after[1][1] < 1e-4:
        return None
    lists = [history, singles, [t for pair in pairs for t in pair]]
    return (
        f"dry {multiplier} {base} {allowed} {last_n} {' '.join(' '.join(map(str, v)) + ' .' for v in lists)} "
        f"{' '.join('%.4g' % v for v in logits)} {ids.index(after[0][0])}"
    )


def main():
    path, out = sys.argv[1:3]
    L.llama_backend_init()
    params = L.llama_model_default_params()
    params.vocab_only = True
    model = L.llama_model_load_from_file(path.encode(), params)
    vocab = L.llama_model_get_vocab(model)
    ids, texts = [], []
    for t in range(L.llama_vocab_n_tokens(vocab)):  # single characters that no other of them holds
        text = L.llama_vocab_get_text(vocab, t)
        if len(text) == 1 and text.isalpha() and text.isascii() and len(ids) < N:
            ids.append(t)
            texts.append(text)
    assert len(ids) == N
    rng = random.Random(7)
    lines = []
    while len(lines) < 120:
        line = cuts(rng)
        if line:
            lines.append(line)
    while len(lines) < 280:
        line = dry(rng, vocab, ids, texts)
        if line:
            lines.append(line)
    with open(out, "w") as f:
        f.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
