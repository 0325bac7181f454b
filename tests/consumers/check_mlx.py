"""mlx-lm loads the exports and uses every tensor, and its results agree with ours.

    check_mlx.py FOLDER      (tests/consumers/main.rs writes the folder and runs this)

The base is transformers' model with the dequantized weights of the quantized file, in float32, saved as published checkpoints are.
mlx-lm refuses an adapter with a tensor that its model has no place for.
"""
import json
import os
import sys
import tempfile
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import numpy as np
import torch
from base_model import architecture, from_gguf
from figures import faults, figure, relative
from gguf import GGUFReader
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import load_adapters
from mlx_lm.utils import load_model
from safetensors.numpy import load_file, save_file

FOLDER = sys.argv[1]
LOGITS = 2e-5  # norm of the difference over the norm
ROUNDED = 2e-4  # the same of Gemma 3, whose factor on embeddings mlx-lm rounds to bfloat16
BASE = os.path.join(FOLDER, "base.gguf")
READER = GGUFReader(BASE)
ARCHITECTURE = architecture(BASE)
# Families whose published checkpoints hold a vision tower: the class that mlx-lm has for them, around the text model.
WITH_TOWERS = {"mistral3": "mistral3", "qwen35": "qwen3_5", "qwen35moe": "qwen3_5_moe", "gemma4": "gemma4"}
WINDOW = next((int(field.contents()) for key, field in READER.fields.items() if key.endswith("attention.sliding_window")), None)
LIMIT = ROUNDED if ARCHITECTURE == "gemma3" else LOGITS

def as_published(config):
    """A text model's keys as in published checkpoints. transformers writes some of them in a newer form, which mlx-lm does not read."""
    rope = config.get("rope_parameters") or {}
    full, sliding = rope.get("full_attention", rope), rope.get("sliding_attention", {})
    layers = config.get("layer_types") or []
    every = layers.index("full_attention") + 1 if "full_attention" in layers else len(layers)
    config |= {"rope_theta": full.get("rope_theta"), "rope_local_base_freq": sliding.get("rope_theta"), "sliding_window_pattern": every, "full_attention_interval": every,
               "num_experts": config.get("num_experts", config.get("num_local_experts", 0)), "partial_rotary_factor": full.get("partial_rotary_factor", 1.0)}
    scaling = {key: value for key, value in full.items() if key != "rope_theta"}
    config["rope_scaling"] = None if full.get("rope_type", "default") == "default" else scaling | {"type": full["rope_type"]}
    if ARCHITECTURE == "gemma4":
        full = next(iter(config["per_layer_config"].values()))
        config |= {"global_head_dim": full["head_dim"], "num_global_key_value_heads": full.get("num_key_value_heads", config["num_key_value_heads"])}
    if ARCHITECTURE == "exaone4":
        config["sliding_window_pattern"] = None
    if ARCHITECTURE == "lfm2":
        config["block_dim"] = config["hidden_size"]
    if config["model_type"] == "granitemoehybrid":
        config["layer_types"] = ["attention"] * len(layers)
    if ARCHITECTURE == "phi3":
        # mlx-lm takes the long factors for texts of any length; transformers takes the short ones for these.
        config["rope_scaling"]["long_factor"] = config["rope_scaling"]["short_factor"]
    return config


def save(folder):
    """Writes the base as a checkpoint of transformers."""
    model = from_gguf(BASE, torch.float32)
    model.save_pretrained(folder)
    path, file = Path(folder, "config.json"), Path(folder, "model.safetensors")
    config, weights = json.loads(path.read_text()), load_file(file)
    if ARCHITECTURE == "qwen35moe":
        # Published ones have all experts in one, as the model in memory.
        weights = {name: value.numpy() for name, value in model.state_dict().items()}
    text = as_published(config.get("text_config", config))
    if "text_config" in config:
        text["tie_word_embeddings"] = config["tie_word_embeddings"]
    if ARCHITECTURE in WITH_TOWERS:
        config = {"model_type": WITH_TOWERS[ARCHITECTURE], "text_config": text, "vocab_size": text["vocab_size"]}
        inside = lambda name: name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name
        weights = {inside(name): value for name, value in weights.items()}
    if ARCHITECTURE == "gpt-oss":
        # Published ones have rows and columns the other way round.
        experts = [name for name in weights if name.endswith(("gate_up_proj", "down_proj"))]
        weights |= {name + ".weight": np.ascontiguousarray(weights.pop(name).swapaxes(1, 2)) for name in experts}
    path.write_text(json.dumps(config))
    save_file(weights, file, {"format": "pt"})


class Rope(nn.Module):
    """mlx-lm's rotary embedding with the file's own divisors of the frequencies."""

    def __init__(self, dims, traditional, base, factors):
        super().__init__()
        self.dims, self.traditional = dims, traditional
        self._freqs = base ** (mx.arange(0, dims, 2) / dims) * mx.array(factors)

    def __call__(self, x, offset=0):
        return mx.fast.rope(x, self.dims, traditional=self.traditional, base=None, scale=1.0, offset=offset, freqs=self._freqs)


def load(checkpoint):
    model = load_model(Path(checkpoint))[0]
    factors = [t.data for t in READER.tensors if t.name == "rope_freqs.weight"]
    # Gemma 4's say which values are not rotated, which mlx-lm knows by itself.
    for module in model.modules() if factors and ARCHITECTURE != "gemma4" else []:
        if isinstance(module.get("rope"), nn.RoPE):
            module.rope = Rope(module.rope.dims, module.rope.traditional, module.rope.base, factors[0])
    return model


def logits(model, tokens):
    return np.array(model(mx.array(tokens)[None])[0].astype(mx.float32)).astype(np.float64)


mx.set_default_device(mx.cpu)
print(ARCHITECTURE, "mlx", mx.__version__, "mlx-lm", mlx_lm.__version__)
with tempfile.TemporaryDirectory() as checkpoint:
    save(checkpoint)
    for case in json.load(open(os.path.join(FOLDER, "cases.json"))):
        folder = os.path.join(FOLDER, "cases", case["name"])
        ours = load_file(os.path.join(folder, "ours.safetensors"))
        tokens, rows = ours["tokens"].tolist(), len(ours["base"])
        # mlx-lm has no windows in Gemma 2: tokens within the first window see the same.
        rows = min(rows, WINDOW) if ARCHITECTURE == "gemma2" else rows
        model = load(checkpoint)
        figure(f"{case['name']}: base alone", relative(ours["base"][:rows], logits(model, tokens)[:rows]), LIMIT)
        model = load_adapters(model, os.path.join(folder, "mlx")).eval()
        read = dict(tree_flatten(model.parameters()))
        stored = mx.load(os.path.join(folder, "mlx", "adapters.safetensors"))
        used = sum(name in read and bool(mx.array_equal(read[name], value)) for name, value in stored.items())
        figure(f"{case['name']}, mlx: tensors of {len(stored)} that it left out", len(stored) - used, 0)
        figure(f"{case['name']}, mlx: logits", relative(ours["adapted"][:rows], logits(model, tokens)[:rows]), LIMIT)
sys.exit(bool(faults()))
