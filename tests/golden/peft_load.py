"""Loads an exported PEFT folder with PEFT itself and compares its logits with ours.

    peft_load.py BASE.gguf ADAPTER_FOLDER LOGITS.safetensors [--tolerance 2e-5]

LOGITS.safetensors, written by `cargo run --example logits`, holds `tokens` [T] (i32 or i64) and `logits` [T, V] (f32, with the adapter,
after the softcap). Fails if PEFT ignores a tensor of the folder, misses one, changes one, or if the logits differ by more
than the tolerance (norm of the difference over the norm).
"""
import argparse
import os
import sys
import warnings

import torch
from gemma4 import from_gguf, logits, lora_key, relative
from peft import PeftModel
from safetensors.torch import load_file

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("base")
p.add_argument("adapter")
p.add_argument("logits")
p.add_argument("--tolerance", type=float, default=2e-5)
a = p.parse_args()
faults = []

model = from_gguf(a.base, torch.float32)
ours = load_file(a.logits)
tokens, expected = ours["tokens"].long(), ours["logits"]
with torch.no_grad():
    without = logits(model, tokens)

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    adapted = PeftModel.from_pretrained(model, os.path.abspath(a.adapter), autocast_adapter_dtype=False).eval()
faults += [str(w.message) for w in caught if "missing" in str(w.message) or "unexpected" in str(w.message)]

stored = load_file(os.path.join(a.adapter, "adapter_model.safetensors"))
loaded = {lora_key(name): tensor for name, tensor in adapted.state_dict().items() if "lora_" in name}
faults += [f"PEFT ignores {name}" for name in sorted(stored.keys() - loaded.keys())]
faults += [f"the folder lacks {name}, which its configuration makes PEFT create" for name in sorted(loaded.keys() - stored.keys())]
for name in sorted(stored.keys() & loaded.keys()):
    if not torch.equal(stored[name].float(), loaded[name].float()):
        faults.append(f"PEFT changed {name}")

with torch.no_grad():
    found = logits(adapted, tokens)
if found.shape != expected.shape:
    faults.append(f"logits are {tuple(expected.shape)}, PEFT gives {tuple(found.shape)}")
else:
    difference, effect = relative(found, expected), relative(without, found)
    print(f"{len(stored)} tensors, rank {adapted.peft_config['default'].r}; the adapter changes the logits by {effect:.2e}; "
          f"ours differ from PEFT's by {difference:.2e}")
    if not difference <= a.tolerance:
        faults.append(f"logits differ by {difference:.2e}, more than {a.tolerance:g}")
    if effect == 0:
        faults.append("the adapter has no effect: nothing was checked")
for fault in faults:
    print("FAIL:", fault)
sys.exit(bool(faults))
