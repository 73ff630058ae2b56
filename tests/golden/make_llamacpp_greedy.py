#!/usr/bin/env python3
"""Makes tests/golden/llamacpp/NAME.json: what llama.cpp says greedily after fixed prompts, and by what margin.

Usage: LLAMA_CPP_LIB_PATH=... make_llamacpp_greedy.py NAME MODEL.gguf OUT.json      (needs llama-cpp-python; CPU)

Prompts are token ids (tokenised here by llama.cpp, kept in the file), so that no tokenizer is judged. For every prompt
64 greedy steps: "tokens" the choices and "margins" the top logit minus the second one. KV type F16, flash attention
off, one prompt at a time.
"""

import json
import sys

import llama_cpp
import numpy as np

N_STEPS = 64
N_CONTEXT = 1024

ENGLISH_LONG = " ".join(
    f"In chapter {i} the travellers crossed river number {i * 7 % 23} and counted {i * i % 31} boats, "
    f"{i * 5 % 17} bridges and a single {['red', 'green', 'blue', 'white'][i % 4]} lighthouse, "
    f"while the {['cook', 'captain', 'doctor'][i % 3]} wrote it all down."
    for i in range(1, 24)
)

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea, there lived",
    "Water boils at a lower temperature on a mountain because",
    'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n',
    "#include <stdio.h>\n\nint main(void)\n{\n    for (int i = 0; i < 10; i++)\n",
    "SELECT name, COUNT(*) FROM orders WHERE",
    "import numpy as np\n\nclass Matrix:\n    def __init__(self, rows, cols):\n",
    '{"name": "Alice", "age": 31, "languages": ["English",',
    "春眠不觉晓,处处闻啼鸟。夜来风雨声,",
    "東京は日本の首都であり、",
    "대한민국의 수도는",
    "Die wichtigsten Städte Deutschlands sind Berlin, Hamburg,",
    "Q: What is 17 + 25?\nA:",
    "List of planets:\n1. Mercury\n2. Venus\n3.",
    "Dear Sir or Madam,\n\nI am writing to complain about",
    ENGLISH_LONG,
]


def logits_of_last(ctx, n_vocab):
    return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(ctx, -1), shape=(n_vocab,)).copy()


def decode(ctx, tokens):
    array = (llama_cpp.llama_token * len(tokens))(*tokens)
    if llama_cpp.llama_decode(ctx, llama_cpp.llama_batch_get_one(array, len(tokens))):
        raise RuntimeError("llama_decode failed")


def main():
    name, path, out = sys.argv[1:4]
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
    vocab = llama_cpp.llama_model_get_vocab(model)
    n_vocab = llama_cpp.llama_vocab_n_tokens(vocab)
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = N_CONTEXT
    params.n_threads = params.n_threads_batch = 2
    params.flash_attn_type = 0
    ctx = llama_cpp.llama_init_from_model(model, params)

    prompts = []
    for text in PROMPTS:
        raw = text.encode()
        buf = (llama_cpp.llama_token * (len(raw) + 8))()
        n = llama_cpp.llama_tokenize(vocab, raw, len(raw), buf, len(buf), True, False)
        prompt, tokens, margins = list(buf[:n]), [], []
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(ctx), True)
        decode(ctx, prompt)
        for _ in range(N_STEPS):
            logits = logits_of_last(ctx, n_vocab)
            best, second = np.argsort(logits)[-1:-3:-1]
            tokens.append(int(best))
            margins.append(round(float(logits[best] - logits[second]), 4))
            decode(ctx, [int(best)])
        prompts.append({"prompt": prompt, "tokens": tokens, "margins": margins})
        print(name, n, "prompt tokens, smallest margin", min(margins), flush=True)
    with open(out, "w") as f:
        f.write('{"model": ' + json.dumps(name) + ', "prompts": [\n')
        f.write(",\n".join(json.dumps(p, separators=(",", ":")) for p in prompts))
        f.write("\n]}\n")


if __name__ == "__main__":
    main()
