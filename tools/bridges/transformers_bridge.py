#!/usr/bin/env python3
"""Hugging Face's transformers below radish: MODEL is a directory or a name of the hub.

    radish serve org/name --backend "process:python3 tools/bridges/transformers_bridge.py [--device cpu] [--dtype auto]"

Needs transformers and torch. Every request computes its whole prompt.
"""

import argparse
import threading

from bridge import Bridge, Refused, serve


class Transformers(Bridge):
    name = "transformers"
    parameters = ["repetition_penalty", "typical_p", "seed"]
    ops = ["generate", "tokenize", "detokenize", "classify", "batch", "info", "metrics"]

    def __init__(self, device, dtype):
        self.device, self.dtype = device, dtype

    def load(self, q):
        import torch
        import transformers

        self.torch, self.lib = torch, transformers
        self.version = transformers.__version__
        if q.get("threads"):
            torch.set_num_threads(q["threads"])
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(q["model"])
        self.model = transformers.AutoModelForCausalLM.from_pretrained(q["model"], dtype=self.dtype)
        self.model = self.model.to(self.device).eval()
        config = self.model.config.get_text_config()
        self.n_ctx = q.get("n_ctx") or getattr(config, "max_position_embeddings", 0) or 131072
        return {
            "version": self.version,
            "model": q["model"],
            "arch": config.model_type,
            "n_ctx": self.n_ctx,
            "n_vocab": config.vocab_size,
            "chat_template": self.tokenizer.chat_template or "",
            "bos_token": self.tokenizer.bos_token or "",
            "eos_token": self.tokenizer.eos_token or "",
        }

    def encode(self, text, add_special):
        return self.tokenizer(text, add_special_tokens=add_special)["input_ids"]

    def options(self, s):
        """transformers' names; greedy where the temperature is 0."""
        if s["temperature"] == 0:
            o = {"do_sample": False}
        else:
            o = {
                "do_sample": True,
                "temperature": s["temperature"],
                "top_p": s["top_p"],
                "top_k": max(s["top_k"], 0),
                "min_p": s["min_p"] or None,
                "typical_p": s.get("typical_p", 1.0),
            }
        return o | {"repetition_penalty": s.get("repetition_penalty", 1.0)}

    def generate(self, request):
        text = self.without_bos(request.prompt, self.tokenizer.bos_token) if request.is_whole else request.prompt
        tokens = self.encode(text, not request.is_whole or text is not request.prompt)
        if not tokens:
            raise Refused("invalid", "the prompt is empty")
        if len(tokens) >= self.n_ctx:
            raise Refused("context", f"the prompt has {len(tokens)} tokens, the context {self.n_ctx}")
        request.n_prompt = len(tokens)
        room = self.n_ctx - len(tokens)
        limit = room if request.max_tokens is None else min(room, request.max_tokens)
        if "seed" in request.sampling:
            self.torch.manual_seed(request.sampling["seed"])
        streamer = self.lib.TextIteratorStreamer(self.tokenizer, skip_prompt=True, skip_special_tokens=True)
        ids = self.torch.tensor([tokens], device=self.device)
        result = {}

        def work():
            try:
                result["ids"] = self.model.generate(
                    ids,
                    attention_mask=self.torch.ones_like(ids),
                    max_new_tokens=limit,
                    streamer=streamer,
                    stopping_criteria=[lambda *_, **__: request.cancelled.is_set()],
                    **self.options(request.sampling),
                )
            except Exception as e:
                result["error"] = e
                streamer.end()

        thread = threading.Thread(target=work)
        thread.start()
        for piece in streamer:
            yield piece, 1
        thread.join()
        if "error" in result:
            raise result["error"]
        request.finish = "length" if result["ids"].shape[1] - len(tokens) >= limit else "stop"

    def tokenize(self, q):
        return {"tokens": self.encode(q["text"], q["add_special"])}

    def detokenize(self, q):
        return {"text": self.tokenizer.decode(q["tokens"], skip_special_tokens=not q["special"])}

    def classify(self, q):
        with self.torch.no_grad():
            logits = self.model(self.torch.tensor([q["tokens"]], device=self.device)).logits[0, -1].float()
        logprobs = self.torch.log_softmax(logits, -1)
        return {"logprobs": logprobs[q["labels"]].tolist()}


if __name__ == "__main__":
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--device", default="cpu", help="as torch names it (cpu)")
    flags.add_argument("--dtype", default="auto", help="of the weights: auto, float32, bfloat16 .. (auto)")
    given = flags.parse_args()
    serve(Transformers(given.device, given.dtype))
