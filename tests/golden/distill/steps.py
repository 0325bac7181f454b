"""Writes steps.json: twenty steps of distillation on tests/golden/qwen3, in float32 on a CPU.

  python steps.py > steps.json
  python steps.py --trl > steps-of-trl.json    # the same by TRL's own function, where `trl` is installed

Needs requirements.txt in tests/golden. The model is the one that the quantized file encodes. Training starts from qwen3/adapter; the teacher is
the same base without an adapter, so that training takes the adapter back; in the case "self" it reads a context in front of the prompt
(TRL's SDFT). The loss is `GKDTrainer.generalized_jsd_loss` of TRL, as in losses.py.
"""
import json
import pathlib
import random
import sys
import warnings

warnings.simplefilter("ignore")
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "families"))
sys.dont_write_bytecode = True

import torch
import torch.nn.functional as F
from families import from_gguf
from losses import buckets, divergence
from peft import PeftModel

QWEN = HERE.parent / "qwen3"
SAMPLES, BATCH, STEPS, RATE = 6, 2, 20, 5e-4
CASES = {
    "forward_kl": dict(beta=0, temperature=1.0, top=0, sft_weight=0.0),
    "reverse_kl": dict(beta=1, temperature=1.0, top=0, sft_weight=0.0),
    "jsd": dict(beta=0.5, temperature=0.9, top=0, sft_weight=0.0),
    "forward_kl of 16": dict(beta=0, temperature=2.0, top=16, sft_weight=0.0),
    "jsd of 16 with sft": dict(beta=0.3, temperature=1.0, top=16, sft_weight=0.5),
    "self": dict(beta=0, temperature=1.0, top=16, sft_weight=0.0, context=True),
}


def samples():
    rng = random.Random(5)
    ids = lambda low, high: [rng.randrange(20, 500) for _ in range(rng.randint(low, high))]
    found = [{"prompt": ids(4, 9), "answer": ids(5, 12)} for _ in range(SAMPLES)]
    return [{**sample, "context": ids(3, 8)} for sample in found]


def steps(samples, beta, temperature, top, sft_weight, context=False):
    base = from_gguf(str(QWEN / "model.gguf"), torch.float32)
    base.config._name_or_path = base.name_or_path = "tiny-qwen3"
    model = PeftModel.from_pretrained(base, str(QWEN / "adapter"), is_trainable=True)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE, weight_decay=0.0)
    found = []
    for step in range(STEPS):
        rows = [samples[(step * BATCH + i) % SAMPLES] for i in range(BATCH)]
        loss_tokens = sum(len(row["answer"]) for row in rows)
        loss = 0.0
        for row in rows:
            ids = torch.tensor([row["prompt"] + row["answer"]])
            first = len(row["prompt"])
            at = slice(first - 1, -1)
            with torch.no_grad(), model.disable_adapter():
                shown = (row["context"] if context else []) + row["prompt"] + row["answer"]
                teacher = model(input_ids=torch.tensor([shown])).logits[0, -len(row["answer"]) - 1 : -1]
            logits = model(input_ids=ids).logits[0, at]
            own, taught = F.log_softmax(logits / temperature, -1), F.log_softmax(teacher / temperature, -1)
            if top:
                likeliest = taught.topk(top, dim=1).indices
                own, taught = buckets(own, likeliest), buckets(taught, likeliest)
            entropy = F.cross_entropy(logits, ids[0, first:], reduction="sum")
            loss = loss + (divergence(own, taught, beta).sum() + sft_weight * entropy) / loss_tokens
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def of_trl(own, taught, beta):
    from trl.experimental.gkd.gkd_trainer import GKDTrainer

    # Log-probabilities are logits at a temperature of 1.
    return GKDTrainer.generalized_jsd_loss(own[None], taught[None], beta=beta, reduction="sum")[None]


if __name__ == "__main__":
    torch.manual_seed(0)
    if "--trl" in sys.argv:
        divergence = of_trl
    all = samples()
    print(json.dumps({"samples": all, "rate": RATE, "cases": {name: {**case, "losses": steps(all, **case)} for name, case in CASES.items()}}))
