"""What PEFT computes with an exported folder, in true float64: the last rows of the logits of a few tokens, stored as f32.

    peft_logits.py BASE.gguf BATCHES.json ADAPTER_FOLDER LOGITS.safetensors

The tokens are the first of BATCHES.json.
"""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import torch  # noqa: E402
from gemma4 import from_gguf, logits, relative, true_float64  # noqa: E402
from peft import PeftModel  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

TOKENS, ROWS = 24, 8

base, batches, adapter, out = sys.argv[1:]
tokens = torch.tensor(json.load(open(batches))[0][0][0]["input_ids"][:TOKENS])


def compute(dtype):
    model = PeftModel.from_pretrained(from_gguf(base, dtype), os.path.abspath(adapter), autocast_adapter_dtype=False)
    with torch.no_grad():
        return logits(model.eval().to(dtype), tokens)[-ROWS:]


with true_float64():
    expected = compute(torch.float64)
save_file({"tokens": tokens, "logits": expected.float().contiguous()}, out)
print(f"{TOKENS} tokens, the last {ROWS} rows; float32 PEFT is within {relative(expected, compute(torch.float32)):.1e}")
