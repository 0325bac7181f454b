"""The first optimizer steps of a recipe in PyTorch: what the trainer's recorded losses are compared with.

    train.py BASE.gguf BATCHES.json ADAPTER_FOLDER LOSSES.json --total-steps 200 [--learning-rate 1e-3 ...]

BATCHES.json is a list of steps; a step is a list of micro-batches; a micro-batch is a list of samples
{"input_ids": [..], "labels": [..]}, where labels[t] is the id that position t - 1 must predict, or -100.
Samples do not see each other: they run one by one. The loss of a step is the mean over all its labels, whatever
the split into micro-batches (transformers' `num_items_in_batch`). LOSSES.json holds, for each step, the loss before
the update, the gradient norm before clipping and the learning rate. The run stops after the last step in BATCHES.json.
"""
import argparse
import contextlib
import json
import math
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import torch  # noqa: E402
import torch.nn.functional as nnf  # noqa: E402
from gemma4 import from_gguf, logits, true_float64  # noqa: E402
from peft import PeftModel  # noqa: E402


def cosine_factor(step, warmup_steps, total_steps, min_lr_ratio):
    """transformers' `get_cosine_schedule_with_warmup`, ending at `min_lr_ratio` instead of 0. Step 0 of a warmup has rate 0."""
    if step < warmup_steps:
        return step / max(1, warmup_steps)
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return min_lr_ratio + (1 - min_lr_ratio) * max(0.0, 0.5 * (1 + math.cos(math.pi * progress)))


def load(base, adapter, dtype):
    """The frozen base with the trainable adapter, in evaluation mode: no dropout."""
    m = PeftModel.from_pretrained(from_gguf(base, dtype), adapter, is_trainable=True, autocast_adapter_dtype=False)
    for name, p in m.named_parameters():
        p.requires_grad_("lora_" in name)
        p.data = p.data.to(dtype)
    return m.eval()


def backward(m, step):
    """Adds the gradient of the step's mean loss; -> that loss."""
    count = sum(label != -100 for batch in step for sample in batch for label in sample["labels"][1:])
    total = 0.0
    for sample in (sample for batch in step for sample in batch):
        labels = torch.tensor(sample["labels"][1:])
        loss = nnf.cross_entropy(logits(m, sample["input_ids"])[:-1], labels, ignore_index=-100, reduction="sum")
        (loss / count).backward()
        total += loss.item()
    return total / count


def train(m, steps, a):
    parameters = [p for p in m.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=a.learning_rate, betas=(a.beta1, a.beta2), eps=a.eps, weight_decay=a.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: cosine_factor(s, a.warmup_steps, a.total_steps, a.min_lr_ratio))
    for number, step in enumerate(steps):
        optimizer.zero_grad()
        loss = backward(m, step)
        limit = a.max_grad_norm if a.max_grad_norm > 0 else math.inf
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit).item()
        rate = schedule.get_last_lr()[0]
        optimizer.step()
        schedule.step()
        print(f"step {number}: loss {loss:.7f}  gradient norm {norm:.6f}  learning rate {rate:.6e}", flush=True)
        yield {"loss": loss, "grad_norm": norm, "learning_rate": rate}


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("base", "batches", "adapter", "losses"):
        p.add_argument(name)
    p.add_argument("--learning-rate", type=float, default=1e-3)
    p.add_argument("--total-steps", type=int, required=True, help="length of the schedule, not of this run")
    p.add_argument("--warmup-steps", type=int, default=0, help="ceil(warmup_ratio * total_steps)")
    p.add_argument("--min-lr-ratio", type=float, default=0.0)
    p.add_argument("--beta1", type=float, default=0.9)
    p.add_argument("--beta2", type=float, default=0.999)
    p.add_argument("--eps", type=float, default=1e-8)
    p.add_argument("--weight-decay", type=float, default=0.0)
    p.add_argument("--max-grad-norm", type=float, default=1.0, help="0: no clipping")
    p.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    a = p.parse_args()

    steps = json.load(open(a.batches))
    m = load(a.base, a.adapter, getattr(torch, a.dtype))
    lora = m.peft_config["default"]
    settings = {k: v for k, v in vars(a).items() if k not in ("base", "batches", "adapter", "losses")}
    settings |= {"rank": lora.r, "lora_alpha": lora.lora_alpha}
    with true_float64() if a.dtype == "float64" else contextlib.nullcontext():
        done = list(train(m, steps, a))
    with open(a.losses, "w") as f:
        f.write('{\n"settings": ' + json.dumps(settings) + ',\n"steps": [\n' + ",\n".join(map(json.dumps, done)) + "\n]\n}\n")
