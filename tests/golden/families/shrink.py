"""Makes a GGUF of families2 smaller: shrink.py IN.gguf OUT.gguf LAYERS WIDTH FFN HEADS KV_HEADS [KEY=VALUE ...] keeps the first LAYERS layers, or those of
a list such as 0,3, and the first rows and columns of every matrix, in formats with blocks of 32. Needs gguf-py and cut.py beside it."""
import sys
import numpy as np
from gguf import GGMLQuantizationType as Type, quants
from cut import UINT32, read, write

source, target, layers, width, ffn, heads, kv_heads, *settings = sys.argv[1:]
D, F, H, G = int(width), int(ffn), int(heads), int(kv_heads)
version, meta, tensors = read(source)
arch = meta["general.architecture"][1].decode()
key = lambda name, default=None: meta.get(f"{arch}.{name}", (0, default))[1]
before = key("block_count")
numbers = [int(n) for n in layers.split(",")] if "," in layers else list(range(int(layers)))
d, f, h = key("embedding_length"), key("feed_forward_length"), key("attention.head_count")
stored = key("attention.head_count_kv")
g = max(stored[1]) if isinstance(stored, tuple) else stored
K = key("attention.key_length") or d // h
rotated = key("rope.dimension_count") or K
for name, (kind, value) in list(meta.items()):
    if name.startswith(arch) and kind == 9 and len(value[1]) == before and not name.endswith("dimension_sections"):
        meta[name] = (kind, (value[0], [value[1][n] for n in numbers]))
put = lambda name, value: meta.__setitem__(f"{arch}.{name}", (UINT32, value))
for name, value in (("block_count", len(numbers)), ("embedding_length", D), ("feed_forward_length", F), ("attention.head_count", H),
                    ("attention.key_length", K), ("attention.value_length", K), ("rope.dimension_count", rotated)):
    put(name, value)
if isinstance(stored, tuple):
    kind, (of, values) = meta[f"{arch}.attention.head_count_kv"]
    meta[f"{arch}.attention.head_count_kv"] = (kind, (of, [G if v else 0 for v in values]))
else:
    put("attention.head_count_kv", G)
for name in ("expert_shared_feed_forward_length", "expert_feed_forward_length"):
    if key(name): put(name, F)
for setting in settings:
    name, value = setting.split("=")
    put(name, int(value))

queries, keys = (np.arange(n * K) for n in (H, G))
rows = {"attn_q": queries, "attn_k": keys, "attn_v": keys, "ffn_gate": np.arange(F), "ffn_up": np.arange(F),
        "attn_qkv": np.concatenate((queries, h * K + keys, (h + g) * K + keys)), "ffn_gate_shexp": np.arange(F), "ffn_up_shexp": np.arange(F),
        "shortconv.in_proj": np.concatenate([part * d + np.arange(D) for part in range(3)])}
cols = {"attn_output": queries, "ffn_down": np.arange(F), "ffn_down_shexp": np.arange(F), "shortconv.conv": np.arange(key("shortconv.l_cache", 0))}
types = {"attn_q": Type.Q8_0, "attn_k": Type.Q8_0, "attn_v": Type.F16, "ffn_gate": Type.Q4_0, "ffn_up": Type.Q5_0, "ffn_down": Type.Q8_0, "attn_output": Type.Q5_0,
         "ffn_gate_exps": Type.Q4_0, "ffn_up_exps": Type.Q5_0, "ffn_down_exps": Type.Q8_0}


E = key("expert_count")
rows["exp_probs_b"] = np.arange(E or 0)


def smaller(name, last, a):
    module = last.removesuffix(".weight").removesuffix(".bias")
    if a.ndim == 3:
        before = a.shape[2]
        a = a[:E, :D, :F] if module == "ffn_down_exps" else a[:E, :F, :D]
        return a * (before / a.shape[2]) ** 0.5
    if a.ndim == 1:
        if len(a) == d and module.endswith("norm") and not (module.startswith("attn_q_") or module.startswith("attn_k_")): return a[:D]
        if module in ("attn_q_norm", "attn_k_norm"): return a if len(a) == K else a[: (H if module == "attn_q_norm" else G) * K]
        return a[rows[module]] if last.endswith(".bias") else a
    if module == "ffn_up" and a.shape[0] == 2 * f: a = np.concatenate((a[:F], a[f:f + F]))
    elif module in rows: a = a[rows[module]]
    elif module == "ffn_gate_inp": a = a[:E]
    elif a.shape[0] == d: a = a[:D]
    c = cols.get(module, np.arange(D))
    return a[:, c] * (a.shape[1] / len(c)) ** 0.5 if module not in ("token_embd",) else a[:, c]


out = []
for name, shape, kind, data in tensors:
    last = name
    if name.startswith("blk."):
        _, layer, last = name.split(".", 2)
        if int(layer) not in numbers: continue
        name = f"blk.{numbers.index(int(layer))}.{last}"
    count = int(np.prod(shape[1:])) if len(shape) > 1 else 1
    a = quants.dequantize(np.frombuffer(data, np.uint8)[: len(data) // count * count].reshape(count, -1), Type(kind)) if kind else np.frombuffer(data, np.float32)[: int(np.prod(shape))]
    a = smaller(name, last, a.reshape(shape[::-1]).astype(np.float32))
    of = Type.F32 if a.ndim == 1 or "gate_inp" in last or last == "shortconv.conv.weight" else types.get(last.removesuffix(".weight"), Type.Q8_0)
    out.append((name, list(a.shape[::-1]), int(of), a.tobytes() if of == Type.F32 else quants.quantize(np.ascontiguousarray(a), of).tobytes()))
write(target, version, meta, out)
