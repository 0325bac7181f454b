"""Other shapes on demand: random valid configurations with random tensor types, in the layout of the committed folders.

    make_random.py OUT_FOLDER SEED [SEED ...]      writes OUT_FOLDER/SEED/{model.gguf, golden.safetensors, adapter/}

Set RULLAMA_GOLDEN=OUT_FOLDER for `cargo test --test golden` to check them too. Needs the environment of `make.sh`.
"""
import os
import random
import sys

from gemma4 import FULL, SLIDING
from golden import golden
from tiny import config, make, tensor_types

BLOCK_256 = ["q4_k", "q5_k", "q6_k"]
BLOCK_32 = ["q4_0", "q5_0", "q8_0"]
PLAIN = ["f32", "f16", "bf16"]


def shape(rng):
    """A configuration that transformers and llama.cpp both accept.

    llama.cpp takes a shared layer's keys from fixed places, so the layers before a KV-shared tail end sliding, full.
    Every width is a multiple of 32, the block of the smallest quantized types.
    """
    layers = rng.randint(3, 8)
    k_eq_v = rng.random() < 0.4
    shared = 0 if k_eq_v or layers < 4 or rng.random() < 0.3 else rng.randint(1, layers - 3)
    kinds = [rng.choice([SLIDING, SLIDING, FULL]) for _ in range(layers)]
    own = layers - shared
    kinds[own - 2:own] = [SLIDING, FULL]
    heads = rng.choice([1, 2, 3, 4, 6, 8])
    dividing = [g for g in range(1, heads + 1) if heads % g == 0]
    sliding_size, full_size = rng.sample([32, 64, 128, 256], 2)  # the converter wants them to differ
    sizes = dict(
        hidden_size=rng.choice([128, 192, 256, 320, 512]), intermediate_size=rng.choice([96, 128, 256, 352, 512]),
        num_attention_heads=heads, num_key_value_heads=rng.choice(dividing), head_dim=sliding_size, global_head_dim=full_size,
        num_kv_shared_layers=shared, use_double_wide_mlp=shared > 0 and rng.random() < 0.7, sliding_window=rng.randint(8, 64),
        hidden_size_per_layer_input=rng.choice([0, 32, 64, 256]), attention_k_eq_v=k_eq_v)
    if shared and not sizes["hidden_size_per_layer_input"]:
        sizes["hidden_size_per_layer_input"] = 64  # transformers 5.23 cannot run a KV-shared tail without per-layer embeddings
    if k_eq_v:
        sizes["num_global_key_value_heads"] = rng.choice(dividing)
    return config(rng.choice([400, 512, 777, 1003]), kinds, **sizes)


def types(rng, cfg):
    """A random type for every matrix, by the length of its rows."""
    def pick(columns):
        return rng.choice(BLOCK_32 + PLAIN + 3 * BLOCK_256 if columns % 256 == 0 else 2 * BLOCK_32 + PLAIN)

    d, p = cfg.hidden_size, cfg.hidden_size_per_layer_input
    chosen = {r"^token_embd\.": pick(d)}
    if p:
        chosen[r"^per_layer_token_embd\."] = pick(p * cfg.num_hidden_layers)
    for i in range(cfg.num_hidden_layers):
        c = cfg.per_layer_config[i]
        ffn = cfg.intermediate_size * (2 if cfg.use_double_wide_mlp and i >= cfg.num_hidden_layers - cfg.num_kv_shared_layers else 1)
        columns = {"attn_output": cfg.num_attention_heads * c.head_dim, "ffn_down": ffn, "proj": p}
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down") + (("inp_gate", "proj") if p else ()):
            chosen[rf"^blk\.{i}\.{name}\.weight"] = pick(columns.get(name, d))
    return chosen


for seed in map(int, sys.argv[2:]):
    rng = random.Random(seed)
    cfg = shape(rng)
    folder = os.path.join(sys.argv[1], str(seed))
    make(cfg, seed, "Q8_0", types(rng, cfg), folder + "/model.gguf")
    per_layer = [cfg.per_layer_config[i] for i in range(cfg.num_hidden_layers)]
    print(f"seed {seed}: {''.join(k[0] for k in cfg.layer_types)}, shared {cfg.num_kv_shared_layers}, D {cfg.hidden_size}, "
          f"F {cfg.intermediate_size}{' doubled' if cfg.use_double_wide_mlp else ''}, P {cfg.hidden_size_per_layer_input}, "
          f"H {cfg.num_attention_heads}, G {[c.num_key_value_heads for c in per_layer]}, K {[c.head_dim for c in per_layer]}, "
          f"k=v {cfg.attention_k_eq_v}, window {cfg.sliding_window}, V {cfg.vocab_size}; matrices {tensor_types(folder + '/model.gguf')}")
    golden(folder, rank=rng.choice([1, 2, 4, 6, 8, 16]), alpha=rng.choice([1, 4, 8, 32]), seed=seed, n=rng.choice([65, 80, 96, 150]))
