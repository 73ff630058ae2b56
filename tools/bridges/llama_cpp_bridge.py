#!/usr/bin/env python3
"""llama.cpp below radish, through llama-cpp-python: MODEL is a GGUF file.

    radish serve model.gguf --backend "process:python3 tools/bridges/llama_cpp_bridge.py [--gpu-layers N]"

Needs llama-cpp-python 0.3. The prompt that was computed last is reused as far as the next one begins with it.
"""

import argparse
import math

from bridge import Bridge, Refused, serve


class LlamaCpp(Bridge):
    name = "llama.cpp"
    parameters = ["repetition_penalty", "presence_penalty", "frequency_penalty", "typical_p", "seed"]
    ops = ["generate", "tokenize", "detokenize", "classify", "batch", "info", "metrics"]

    def __init__(self, gpu_layers):
        self.gpu_layers = gpu_layers

    def load(self, q):
        import llama_cpp

        self.version = llama_cpp.__version__
        self.lib = llama_cpp
        self.llm = llama_cpp.Llama(
            q["model"],
            n_ctx=q.get("n_ctx", 0),
            n_threads=q.get("threads"),
            n_threads_batch=q.get("threads"),
            n_gpu_layers=self.gpu_layers,
            verbose=False,
        )
        m = self.llm.metadata
        self.bos = self.piece(self.llm.token_bos())
        return {
            "version": self.version,
            "model": m.get("general.name", ""),
            "arch": m.get("general.architecture", ""),
            "n_ctx": self.llm.n_ctx(),
            "n_vocab": self.llm.n_vocab(),
            "chat_template": m.get("tokenizer.chat_template", ""),
            "bos_token": self.bos,
            "eos_token": self.piece(self.llm.token_eos()),
        }

    def piece(self, token):
        return self.llm.detokenize([token], special=True).decode(errors="replace") if token >= 0 else ""

    def prompt_tokens(self, request):
        text = self.without_bos(request.prompt, self.bos) if request.is_whole else request.prompt
        add = self.llm.metadata.get("tokenizer.ggml.add_bos_token") == "true" or text is not request.prompt
        return self.llm.tokenize(text.encode(), add_bos=add, special=request.is_whole)

    def generate(self, request):
        tokens = self.prompt_tokens(request)
        room = self.llm.n_ctx() - len(tokens)
        if room < 1:
            raise Refused("context", f"the prompt has {len(tokens)} tokens, the context {self.llm.n_ctx()}")
        if not tokens:
            raise Refused("invalid", "the prompt is empty")
        request.n_prompt = len(tokens)
        before = self.llm.input_ids[: self.llm.n_tokens].tolist()
        same = next((i for i, (a, b) in enumerate(zip(before, tokens)) if a != b), min(len(before), len(tokens)))
        request.n_cached = min(same, len(tokens) - 1)
        s = request.sampling
        limit = room if request.max_tokens is None else min(room, request.max_tokens)
        for chunk in self.llm.create_completion(
            tokens,
            max_tokens=limit,
            temperature=s["temperature"],
            top_p=s["top_p"],
            top_k=max(s["top_k"], 0),
            min_p=s["min_p"],
            typical_p=s.get("typical_p", 1),
            repeat_penalty=s.get("repetition_penalty", 1),
            presence_penalty=s.get("presence_penalty", 0),
            frequency_penalty=s.get("frequency_penalty", 0),
            seed=s["seed"] & 0xFFFFFFFF if "seed" in s else None,
            stream=True,
        ):
            choice = chunk["choices"][0]
            request.finish = choice["finish_reason"] or request.finish
            yield choice["text"], int(choice["finish_reason"] is None)

    def tokenize(self, q):
        add = q["add_special"] and self.llm.metadata.get("tokenizer.ggml.add_bos_token") == "true"
        return {"tokens": self.llm.tokenize(q["text"].encode(), add_bos=add, special=q["parse_special"])}

    def detokenize(self, q):
        return {"text": self.llm.detokenize(q["tokens"], special=q["special"]).decode(errors="replace")}

    def classify(self, q):
        self.llm.reset()
        self.llm.eval(q["tokens"])
        logits = self.lib.llama_get_logits_ith(self.llm.ctx, -1)[: self.llm.n_vocab()]
        most = max(logits)
        total = most + math.log(sum(math.exp(v - most) for v in logits))
        return {"logprobs": [logits[label] - total for label in q["labels"]]}


if __name__ == "__main__":
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--gpu-layers", type=int, default=0, help="layers on the GPU, -1: all (0)")
    serve(LlamaCpp(flags.parse_args().gpu_layers))
