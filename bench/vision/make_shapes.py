"""Random weights of real shapes: a mmproj file as llama.cpp writes it, and a text model of the right width with few layers.

    make_shapes.py gemma3|qwen2vl OUT VOCAB.gguf [--type bf16|f16]     (needs numpy and gguf)

gemma3   SigLIP so400m of Gemma 3 4B: 896 x 896, patch 14, 27 layers of 1,152, 16 heads of 72; text width 2,560
qwen2vl  the ViT of Qwen2-VL-2B: patch 14, 32 layers of 1,280, 16 heads of 80; text width 1,536
The text model has N_LAYERS layers and VOCAB's tokens: what is measured is the encoder; both programs run the same file.
"""

import os
import sys

import gguf
import numpy as np

N_LAYERS = 2
rng = np.random.default_rng(7)


def draw(shape, scale=0.02):
    return (rng.standard_normal(shape, dtype=np.float32) * scale).astype(np.float32)


class Out:
    def __init__(self, path, arch, kind):
        self.w = gguf.GGUFWriter(path, arch)
        self.kind = kind

    def matrix(self, name, *shape, scale=0.02):
        x = draw(shape, scale)
        if self.kind == "bf16":
            self.w.add_tensor(
                name, gguf.quantize(x, gguf.GGMLQuantizationType.BF16), raw_dtype=gguf.GGMLQuantizationType.BF16
            )
        else:
            self.w.add_tensor(name, x.astype(np.float16))

    def vector(self, name, n, one=False):
        self.w.add_tensor(name, np.ones(n, np.float32) if one else draw((n,)))

    def f32(self, name, *shape):
        self.w.add_tensor(name, draw(shape))

    def close(self):
        self.w.write_header_to_file()
        self.w.write_kv_data_to_file()
        self.w.write_tensors_to_file()
        self.w.close()


def layers(o, n, h, f):
    for i in range(n):
        p = f"v.blk.{i}."
        for norm in ("ln1", "ln2"):
            o.vector(p + norm + ".weight", h, True)
            o.vector(p + norm + ".bias", h)
        for m in ("attn_q", "attn_k", "attn_v", "attn_out"):
            o.matrix(p + m + ".weight", h, h)
            o.vector(p + m + ".bias", h)
        o.matrix(p + "ffn_up.weight", f, h)
        o.vector(p + "ffn_up.bias", f)
        o.matrix(p + "ffn_down.weight", h, f)
        o.vector(p + "ffn_down.bias", h)


def clip_head(o, projector, h, f, n, heads, image, patch, text, mean, std):
    w = o.w
    w.add_type("mmproj")
    w.add_file_type(32 if o.kind == "bf16" else 1)
    w.add_bool("clip.has_vision_encoder", True)
    w.add_string("clip.projector_type", projector)
    w.add_uint32("clip.vision.projection_dim", text)
    w.add_uint32("clip.vision.image_size", image)
    w.add_uint32("clip.vision.patch_size", patch)
    w.add_uint32("clip.vision.embedding_length", h)
    w.add_uint32("clip.vision.feed_forward_length", f)
    w.add_uint32("clip.vision.block_count", n)
    w.add_uint32("clip.vision.attention.head_count", heads)
    w.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    w.add_array("clip.vision.image_mean", mean)
    w.add_array("clip.vision.image_std", std)


def gemma3_eyes(path, kind):
    o = Out(path, "clip", kind)
    h, f, n, text = 1152, 4304, 27, 2560
    clip_head(o, "gemma3", h, f, n, 16, 896, 14, text, [0.5] * 3, [0.5] * 3)
    o.w.add_bool("clip.use_gelu", True)
    o.w.add_uint32("clip.vision.projector.scale_factor", 4)
    layers(o, n, h, f)
    o.f32("v.patch_embd.weight", h, 3, 14, 14)
    o.vector("v.patch_embd.bias", h)
    o.f32("v.position_embd.weight", 4096, h)
    o.vector("v.post_ln.weight", h, True)
    o.vector("v.post_ln.bias", h)
    o.vector("mm.soft_emb_norm.weight", h, True)
    o.matrix("mm.input_projection.weight", h, text)
    o.close()


def qwen2vl_eyes(path, kind):
    o = Out(path, "clip", kind)
    h, f, n, text = 1280, 5120, 32, 1536
    clip_head(
        o,
        "qwen2vl_merger",
        h,
        f,
        n,
        16,
        560,
        14,
        text,
        [0.48145466, 0.4578275, 0.40821073],
        [0.26862954, 0.26130258, 0.27577711],
    )
    layers(o, n, h, f)
    o.f32("v.patch_embd.weight", h, 3, 14, 14)
    o.f32("v.patch_embd.weight.1", h, 3, 14, 14)
    o.vector("v.post_ln.weight", h, True)
    o.vector("v.post_ln.bias", h)
    o.matrix("mm.0.weight", 4 * h, 4 * h)
    o.vector("mm.0.bias", 4 * h)
    o.matrix("mm.2.weight", text, 4 * h)
    o.vector("mm.2.bias", text)
    o.close()


def copy_vocab(o, source, extra):
    """The last tokens of the vocabulary become the image's, where it has none."""
    r = gguf.GGUFReader(source)

    def field(k):
        return r.fields["tokenizer.ggml." + k].contents()

    tokens, types = list(field("tokens")), list(field("token_type"))
    for i, t in enumerate(extra):
        if t in tokens:
            continue
        tokens[-1 - i] = t
        types[-1 - i] = 3
    o.w.add_tokenizer_model(field("model"))
    o.w.add_tokenizer_pre(field("pre"))
    o.w.add_token_list(tokens)
    o.w.add_token_types(types)
    o.w.add_token_merges(field("merges"))
    o.w.add_bos_token_id(field("bos_token_id"))
    o.w.add_eos_token_id(field("eos_token_id"))
    o.w.add_add_bos_token(False)
    return len(tokens)


def text(path, kind, arch, source):
    o = Out(path, arch, kind)
    gemma = arch == "gemma3"
    h, f, heads, kv, d = (2560, 10240, 8, 4, 256) if gemma else (1536, 8960, 12, 2, 128)
    w = o.w
    w.add_name(arch + " of few layers")
    w.add_context_length(32768)
    w.add_embedding_length(h)
    w.add_block_count(N_LAYERS)
    w.add_feed_forward_length(f)
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_rope_freq_base(1e6)
    w.add_key_length(d)
    w.add_value_length(d)
    if gemma:
        w.add_sliding_window(1024)
    else:
        w.add_rope_dimension_sections([16, 24, 24, 0])
    extra = (
        ["<start_of_image>", "<end_of_image>", "<image_soft_token>"]
        if gemma
        else ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
    )
    n = copy_vocab(o, source, extra)
    o.matrix("token_embd.weight", n, h)
    o.vector("output_norm.weight", h, True)
    if not gemma:
        o.matrix("output.weight", n, h)
    for i in range(N_LAYERS):
        p = f"blk.{i}."
        o.vector(p + "attn_norm.weight", h, True)
        o.vector(p + "ffn_norm.weight", h, True)
        o.matrix(p + "attn_q.weight", heads * d, h)
        o.matrix(p + "attn_k.weight", kv * d, h)
        o.matrix(p + "attn_v.weight", kv * d, h)
        o.matrix(p + "attn_output.weight", h, heads * d)
        if gemma:
            for norm in ("post_attention_norm", "post_ffw_norm"):
                o.vector(p + norm + ".weight", h, True)
            for norm in ("attn_q_norm", "attn_k_norm"):
                o.vector(p + norm + ".weight", d, True)
        else:
            o.vector(p + "attn_q.bias", heads * d)
            o.vector(p + "attn_k.bias", kv * d)
            o.vector(p + "attn_v.bias", kv * d)
        o.matrix(p + "ffn_gate.weight", f, h)
        o.matrix(p + "ffn_up.weight", f, h)
        o.matrix(p + "ffn_down.weight", h, f)
    o.close()


def main():
    arch, out, vocab = sys.argv[1:4]
    kind = sys.argv[5] if len(sys.argv) > 5 else "bf16"
    os.makedirs(out, exist_ok=True)
    (gemma3_eyes if arch == "gemma3" else qwen2vl_eyes)(os.path.join(out, f"mmproj-{arch}-{kind}.gguf"), kind)
    text(os.path.join(out, f"text-{arch}.gguf"), "f16", arch, vocab)


main()
