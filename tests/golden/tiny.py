"""Tiny random Gemma 4 models: a transformers folder, then a GGUF through llama.cpp's own converter and quantizer.

Everything is a function of the configuration and the seed. The environment names llama.cpp's source folder
(`LLAMA_CPP`) and its quantizer (`LLAMA_QUANTIZE`).
"""
import ctypes
import json
import os
import random
import re
import subprocess
import sys
import tempfile

import numpy as np
import torch
from gemma4 import FULL, SLIDING, gguf
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import Gemma4ForCausalLM, Gemma4TextConfig, PreTrainedTokenizerFast

SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>"]
CHAT_TEMPLATE = ("{{ bos_token }}{% for message in messages %}<|turn>{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
                 "{{ message['content'] | trim }}<turn|>\n{% endfor %}{% if add_generation_prompt %}<|turn>model\n{% endif %}")


def config(vocab, layer_types, **shape):
    """A Gemma 4 text configuration; `shape` overrides what the family shares."""
    common = dict(
        vocab_size=vocab, vocab_size_per_layer_input=vocab, layer_types=layer_types, num_hidden_layers=len(layer_types),
        num_kv_shared_layers=0, use_double_wide_mlp=False, hidden_size_per_layer_input=0, attention_k_eq_v=False,
        final_logit_softcapping=30.0, max_position_embeddings=1024, tie_word_embeddings=True, pad_token_id=0, eos_token_id=1, bos_token_id=2,
        rope_parameters={SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
                         FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0}})
    return Gemma4TextConfig(**(common | shape))


def tokenizer(vocab, seed):
    """Gemma's kind of tokenizer, byte-fallback BPE with ▁ for the space, trained on made-up words."""
    rng = random.Random(seed)
    syllables = [c + v for c in "bcdfghjklmnprstvwz" for v in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(400)]
    lines = [" ".join(rng.choices(words, k=12)) + "." for _ in range(400)]

    def bpe(model):
        t = Tokenizer(model)
        t.normalizer = normalizers.Replace(" ", "▁")
        t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        return t

    head = SPECIAL + [f"<0x{i:02X}>" for i in range(256)] + ["\n"]
    trained = bpe(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    trained.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=vocab - len(head), show_progress=False))
    words = head + [w for w, _ in sorted(trained.get_vocab().items(), key=lambda item: item[1])]
    assert len(words) == len(set(words)) == vocab, (len(words), vocab)
    merges = [tuple(m) if not isinstance(m, str) else tuple(m.split(" ")) for m in json.loads(trained.to_str())["model"]["merges"]]
    t = bpe(models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<bos>", eos_token="<eos>", unk_token="<unk>", pad_token="<pad>",
                                   mask_token="<mask>", extra_special_tokens=SPECIAL[5:], chat_template=CHAT_TEMPLATE)


@torch.no_grad()
def randomize(model, seed):
    """Random weights at scales where every path matters: leaving any part out moves the logits by far more than rounding."""
    g = torch.Generator().manual_seed(seed)
    normal = lambda p, mean, std: p.copy_(mean + std * torch.randn(p.shape, generator=g))
    scalars = [(n, b) for n, b in model.named_buffers() if "layer_scalar" in n]
    for name, p in list(model.named_parameters()) + scalars:
        leaf = name.removesuffix(".weight").rsplit(".", 1)[-1]
        if leaf == "embed_tokens":
            normal(p, 0, p.shape[-1] ** -0.5)  # times sqrt(D): about 1
        elif leaf == "embed_tokens_per_layer":
            normal(p, 0, model.config.hidden_size_per_layer_input ** -0.5)  # times sqrt(P): about 1
        elif leaf == "q_norm":
            normal(p, 0.9, 0.1)
        elif leaf == "k_norm":
            normal(p, 2.0 * p.shape[0] ** -0.5, 0.03)  # the attention scale is 1
        elif name == "model.norm.weight":  # logits reach the softcap; random signs keep the tied head from echoing the input
            normal(p, 5.0, 0.5)
            p.mul_(torch.randint(0, 2, p.shape, generator=g) * 2 - 1)
        elif leaf == "layer_scalar":
            p.copy_(0.8 + 0.25 * torch.rand(p.shape, generator=g))
        elif leaf in ("post_attention_layernorm", "post_feedforward_layernorm", "post_per_layer_input_norm"):
            normal(p, 0.35, 0.05)
        elif "norm" in leaf:
            normal(p, 1.0, 0.2)
        elif leaf == "scale":  # of the router: spreads the experts' scores
            normal(p, 4.0, 0.5)
        elif leaf == "per_expert_scale":
            p.copy_(0.5 + torch.rand(p.shape, generator=g))
        else:
            assert p.ndim >= 2, name
            normal(p, 0, (4.0 if name.endswith("router.proj.weight") else 1.0) * p.shape[-1] ** -0.5)


def add_unused_kv(folder, model, seed):
    """Google's checkpoints carry K and V weights for the KV-shared layers too. Nothing may read them: they are large here."""
    g, path = torch.Generator().manual_seed(seed), f"{folder}/model.safetensors"
    state = load_file(path)
    for i, layer in enumerate(model.model.layers):
        if layer.self_attn.is_kv_shared_layer:
            c = model.config.per_layer_config[i]
            shape = c.num_key_value_heads * c.head_dim, model.config.hidden_size
            for w in ("k_proj", "v_proj"):
                state[f"model.layers.{i}.self_attn.{w}.weight"] = torch.randn(shape, generator=g)
            state[f"model.layers.{i}.self_attn.k_norm.weight"] = torch.full((c.head_dim,), 3.0)
    save_file(state, path, metadata={"format": "pt"})


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"


def make(cfg, seed, mixture, types, out):
    """Writes the GGUF file `out`, quantized as `mixture`; `types` maps a regular expression over tensor names to a type."""
    torch.manual_seed(seed)
    model = Gemma4ForCausalLM(cfg).float()
    randomize(model, seed)
    os.makedirs(os.path.dirname(out), exist_ok=True)
    name = os.path.basename(os.path.dirname(os.path.abspath(out)))
    with tempfile.TemporaryDirectory() as work:
        hf, bf16 = f"{work}/tiny-{name}", f"{work}/bf16.gguf"
        model.save_pretrained(hf)
        add_unused_kv(hf, model, seed + 100)
        tokenizer(cfg.vocab_size, seed).save_pretrained(hf)
        run(sys.executable, os.environ["LLAMA_CPP"] + "/convert_hf_to_gguf.py", hf, "--outtype", "bf16", "--outfile", bf16)
        options = [part for pattern, kind in types.items() for part in ("--tensor-type", f"{pattern}={kind}")]
        run(os.environ["LLAMA_QUANTIZE"], *options, bf16, out, mixture)


def tensor_types(path):
    """{type: number of matrices} of a file: what the golden tests of it exercise."""
    count = {}
    for t in gguf.GGUFReader(path).tensors:
        if len(t.shape) >= 2:
            count[t.tensor_type.name] = count.get(t.tensor_type.name, 0) + 1
    return dict(sorted(count.items()))


def ggml_quantize(array, kind):
    """Rows of f32 as raw blocks of a GGUF type, by llama.cpp's own library beside the quantizer."""
    folder = os.path.dirname(os.environ["LLAMA_QUANTIZE"])
    ggml = ctypes.CDLL(next(os.path.join(folder, f) for f in sorted(os.listdir(folder)) if re.match(r"(lib)?ggml-base\.(so|dylib|dll)", f)))
    rows, columns = array.shape
    source = np.ascontiguousarray(array, np.float32)
    out = np.zeros((rows, ggml_row_size(columns, kind)), np.uint8)
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
    written = ggml.ggml_quantize_chunk(int(kind), source.ctypes.data, out.ctypes.data, 0, rows, columns, None)
    assert written == out.size, (written, out.size)
    return out


def ggml_row_size(columns, kind):
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return columns // block * size
