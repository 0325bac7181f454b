"""Makes the five committed models and their references: dense/, big/, ollama/, moe/ and moe128/. `make.sh` calls it."""
import os
import sys

import ollama
from gemma4 import FULL as F
from gemma4 import SLIDING as S
from golden import golden
from tiny import config, make, tensor_types

# Of the tokens and adapters of mixtures of experts: those whose router margin is the widest of 12, so that rounding cannot
# choose other experts.
SEEDS = {"moe": 8, "moe128": 8}
HERE = os.path.dirname(os.path.abspath(__file__))


def dense():
    """Like gemma4:e2b: per-layer embeddings, a KV-shared tail with double-wide feed-forward, one kind of heads with two sizes.

    The tail uses the last sliding (3) and the last full (4) layer's keys and values, not the first. Rows of 64 and 128
    are no multiple of 256: the quantizer falls back to Q5_0 and Q8_0.
    """
    shape = dict(hidden_size=256, intermediate_size=128, num_attention_heads=4, num_key_value_heads=1, head_dim=32, global_head_dim=64,
                 num_kv_shared_layers=3, use_double_wide_mlp=True, hidden_size_per_layer_input=64, sliding_window=32)
    types = {r"blk\.1\.attn_output": "f16", r"blk\.2\.ffn_up": "bf16", r"blk\.4\.attn_q": "q8_0"}
    make(config(512, [S, S, F, S, F, S, S, F], **shape), 20260, "Q4_K_M", types, f"{HERE}/dense/model.gguf")
    golden(f"{HERE}/dense", rank=4, alpha=8)


def big():
    """Like 12b and 31b: values are the raw keys on full layers, which have another number of K/V heads; no per-layer embeddings.

    An odd vocabulary, heads that are no power of two, a rank of 5, and types that Q4_K_M never gives.
    """
    shape = dict(hidden_size=256, intermediate_size=512, num_attention_heads=6, num_key_value_heads=3, head_dim=32, global_head_dim=64,
                 num_global_key_value_heads=1, attention_k_eq_v=True, sliding_window=24)
    types = {r"token_embd": "q8_0", r"blk\.[0-3]\.attn_output": "q5_0", r"blk\.4\.attn_output": "q8_0",
             r"blk\.0\.attn_k": "f32", r"blk\.0\.ffn_gate": "q4_0", r"blk\.1\.ffn_down": "q8_0", r"blk\.2\.attn_q": "q4_0",
             r"blk\.3\.attn_q": "bf16", r"blk\.3\.attn_v": "f16", r"blk\.4\.ffn_up": "q6_k"}
    make(config(521, [S, F, S, S, F], **shape), 20261, "Q5_K_M", types, f"{HERE}/big/model.gguf")
    golden(f"{HERE}/big", rank=5, alpha=8, hidden=False)


def moe():
    """Like gemma4:26b-a4b: experts beside every feed-forward block, values that are the raw keys on full layers.

    Rows of 96 and 160 are no multiple of 256, as the real 704 and 2112 are not: Q5_0 and Q8_0 below, Q4_K and Q6_K above.
    """
    shape = dict(hidden_size=256, intermediate_size=160, num_attention_heads=4, num_key_value_heads=2, head_dim=32, global_head_dim=64,
                 num_global_key_value_heads=1, attention_k_eq_v=True, sliding_window=32, enable_moe_block=True, num_experts=8,
                 top_k_experts=2, moe_intermediate_size=96)
    types = {r"blk\.1\.ffn_gate_up_exps": "q6_k", r"blk\.0\.ffn_down_exps": "q8_0", r"blk\.[12]\.ffn_down_exps": "q5_0",
             r"ffn_down\.": "q5_0", r"attn_output": "q8_0"}  # with just 8 experts llama-quantize would choose Q5_1 here
    make(config(512, [S, F, S, F], **shape), 20263, "Q4_K_M", types, f"{HERE}/moe/model.gguf")
    golden(f"{HERE}/moe", rank=3, alpha=6, seed=SEEDS["moe"], hidden=False, experts=True)


def moe128():
    """As many experts as gemma4:26b-a4b has: 128, of which 8 work on a token."""
    shape = dict(hidden_size=128, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=32, global_head_dim=64,
                 num_global_key_value_heads=1, attention_k_eq_v=True, sliding_window=32, enable_moe_block=True, num_experts=128,
                 top_k_experts=8, moe_intermediate_size=32)
    make(config(512, [S, F], **shape), 20264, "Q4_K_M", {}, f"{HERE}/moe128/model.gguf")
    golden(f"{HERE}/moe128", rank=4, alpha=8, seed=SEEDS["moe128"], hidden=False)


def in_ollamas_dialect():
    """A smaller model like e2b, rewritten as Ollama's converter writes it; the references are made from the rewritten file."""
    shape = dict(hidden_size=256, intermediate_size=128, num_attention_heads=2, num_key_value_heads=1, head_dim=32, global_head_dim=64,
                 num_kv_shared_layers=2, use_double_wide_mlp=True, hidden_size_per_layer_input=64, sliding_window=16)
    path = f"{HERE}/ollama/model.gguf"
    make(config(512, [S, F, S, F], **shape), 20262, "Q4_K_M", {}, path)
    ollama.rewrite(path)
    golden(f"{HERE}/ollama", rank=3, alpha=4, n=48, hidden=False)


if __name__ == "__main__":
    jobs = {"dense": dense, "big": big, "ollama": in_ollamas_dialect, "moe": moe, "moe128": moe128}
    for name, job in jobs.items():
        if name in (sys.argv[1:] or jobs):
            job()
            folder = f"{HERE}/{name}"
            size = sum(os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(folder) for f in fs)
            print(f"  {size / 1e6:.2f} MB, matrices {tensor_types(folder + '/model.gguf')}")
