"""The adapter that the chat run starts from: PEFT's folder, rank 8, alpha 16, every module kind, random and nonzero, from a seed.

    make_adapter.py BASE.gguf OUT_FOLDER
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import torch  # noqa: E402
from gemma4 import from_gguf  # noqa: E402
from golden import attach  # noqa: E402

base, out = sys.argv[1:]
model = from_gguf(base, torch.float32)
model.config._name_or_path = model.name_or_path = "tiny-gemma4"
adapted = attach(model, rank=8, alpha=16, seed=11, b_std=0.01)
adapted.save_pretrained(out)
if os.path.exists(out + "/README.md"):
    os.remove(out + "/README.md")
print(sum(p.numel() for p in adapted.parameters() if p.requires_grad), "parameters in", out)
