#!/usr/bin/env python3
"""Apple's MLX below radish, through mlx-lm: MODEL is a directory or a name of the hub, MLX's quantised ones included.

    radish serve mlx-community/Qwen3-0.6B-4bit --backend "process:python3 tools/bridges/mlx_lm_bridge.py"

Needs mlx-lm (on Linux with mlx-cpu). The prompt that was computed last is reused as far as the next one begins with it.
"""

from bridge import Bridge, Refused, serve


class MlxLm(Bridge):
    name = "mlx-lm"
    parameters = ["repetition_penalty", "seed"]
    ops = ["generate", "tokenize", "detokenize", "classify", "batch", "info", "metrics"]

    def load(self, q):
        import mlx.core as mx
        import mlx_lm
        from mlx_lm.models import cache

        self.mx, self.lib, self.caches = mx, mlx_lm, cache
        self.version = mlx_lm.__version__
        self.model, self.tokenizer = mlx_lm.load(q["model"])
        self.cache, self.seen = cache.make_prompt_cache(self.model), []
        config = self.model.args
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
        return self.tokenizer.encode(text, add_special_tokens=add_special)

    def reuse(self, tokens):
        """How many tokens of the prompt are in the cache; the cache is cut there. One is left to compute."""
        same = next((i for i, (a, b) in enumerate(zip(self.seen, tokens)) if a != b), min(len(self.seen), len(tokens)))
        same = min(same, len(tokens) - 1)
        if len(self.seen) > same and self.caches.can_trim_prompt_cache(self.cache):
            self.caches.trim_prompt_cache(self.cache, len(self.seen) - same)
        elif len(self.seen) > same:
            self.cache, same = self.caches.make_prompt_cache(self.model), 0
        return same

    def generate(self, request):
        from mlx_lm.sample_utils import make_logits_processors, make_sampler

        text = self.without_bos(request.prompt, self.tokenizer.bos_token) if request.is_whole else request.prompt
        tokens = self.encode(text, not request.is_whole or text is not request.prompt)
        if not tokens:
            raise Refused("invalid", "the prompt is empty")
        if len(tokens) >= self.n_ctx:
            raise Refused("context", f"the prompt has {len(tokens)} tokens, the context {self.n_ctx}")
        s = request.sampling
        if "seed" in s:
            self.mx.random.seed(s["seed"] & 0xFFFFFFFF)
        request.n_prompt, request.n_cached = len(tokens), self.reuse(tokens)
        room = self.n_ctx - len(tokens)
        request.finish = "length"
        self.seen = list(tokens)
        for r in self.lib.stream_generate(
            self.model,
            self.tokenizer,
            tokens[request.n_cached :],
            max_tokens=room if request.max_tokens is None else min(room, request.max_tokens),
            sampler=make_sampler(temp=s["temperature"], top_p=s["top_p"], min_p=s["min_p"], top_k=max(s["top_k"], 0)),
            logits_processors=make_logits_processors(repetition_penalty=s.get("repetition_penalty")),
            prompt_cache=self.cache,
        ):
            request.finish = r.finish_reason or request.finish
            self.seen.append(r.token)
            yield r.text, int(r.finish_reason != "stop")
        # What was drawn last may or may not be in the cache: as far as that reaches is what was seen.
        del self.seen[self.cache[0].offset :]

    def tokenize(self, q):
        return {"tokens": self.encode(q["text"], q["add_special"])}

    def detokenize(self, q):
        return {"text": self.tokenizer.decode(q["tokens"], skip_special_tokens=not q["special"])}

    def classify(self, q):
        mx = self.mx
        logits = self.model(mx.array([q["tokens"]]))[0, -1].astype(mx.float32)
        logprobs = logits - mx.logsumexp(logits)
        return {"logprobs": logprobs[mx.array(q["labels"])].tolist()}


if __name__ == "__main__":
    serve(MlxLm())
