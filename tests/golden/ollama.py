"""Rewrites a GGUF file of llama.cpp's into the dialect of Ollama's own converter, in place."""
import os

import numpy as np
from gemma4 import ALIAS, gguf, read
from tiny import ggml_quantize

NAMES = {standard: other for other, standard in ALIAS.items()}
TYPES = gguf.GGMLQuantizationType
KINDS = gguf.GGUFValueType


def rewrite(path):
    """Other tokenizer keys, other tensor names, a 16-bit per-layer table, a quantized per-layer projection, other towers to skip."""
    reader = gguf.GGUFReader(path)
    _, arrays = read(path)
    layers = int(reader.fields["gemma4.block_count"].contents())
    w = gguf.GGUFWriter(path + ".new", "gemma4")
    for key, field in reader.fields.items():
        value, kind = field.contents(), field.types[0]
        element = field.types[-1] if kind == KINDS.ARRAY else None
        if key.startswith("GGUF.") or key in ("general.architecture", "tokenizer.ggml.mask_token_id", "tokenizer.chat_template"):
            continue
        if key == "tokenizer.ggml.model":
            value = "llama"  # yet it is BPE, with merges
        elif key == "tokenizer.ggml.scores":
            value = [float(i) for i in range(len(value))]
        elif key == "tokenizer.ggml.token_type":
            value = [1 if t == 6 else t for t in value]  # byte tokens are plain tokens there
        elif key == "tokenizer.ggml.add_bos_token":
            value = False
        elif key == "gemma4.attention.head_count_kv":
            value, kind, element = [int(value)] * layers, KINDS.ARRAY, KINDS.INT32
        elif key == "gemma4.attention.shared_kv_layers":
            kind = KINDS.INT32
        w.add_key_value(key, value, kind, element)
    w.add_key_value("tokenizer.ggml.eos_token_ids", [1, 6], KINDS.ARRAY, KINDS.INT32)
    w.add_uint32("gemma4.vision.block_count", 1)
    w.add_uint32("gemma4.audio.block_count", 1)
    w.add_float32("gemma4.vision.attention.layer_norm_epsilon", 1e-6)

    w.add_tensor("a.conv1d.0.weight", np.ones((4, 1, 3, 3), np.float16))
    for t in reader.tensors:
        if t.name == "per_layer_token_embd.weight":
            w.add_tensor(t.name, arrays[t.name].astype(np.float16))
        elif t.name == "per_layer_model_proj.weight":
            w.add_tensor(t.name, ggml_quantize(arrays[t.name], TYPES.Q4_K), raw_dtype=TYPES.Q4_K)
        else:
            parent, _, rest = t.name.removesuffix(".weight").rpartition(".")
            rest += ".weight"
            w.add_tensor(f"{parent}.{NAMES[rest]}" if rest in NAMES else t.name, np.array(t.data), raw_dtype=t.tensor_type)
    w.add_tensor("mm.input_projection.weight", np.ones((8, 4), np.float16))
    w.add_tensor("v.blk.0.attn_q.weight", np.ones((4, 4), np.float16))
    w.add_tensor("v.patch_embd.weight", np.ones((4, 3, 2, 2), np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    os.replace(path + ".new", path)
