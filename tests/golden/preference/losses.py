"""Writes losses.json: twenty steps of TRL's own trainers on tests/golden/qwen3, in float32 on a CPU.

  python losses.py > losses.json

Needs requirements.txt beside this file and in tests/golden. The model is the one that the quantized file encodes. Training starts
from qwen3/adapter, or from the same adapter with B = 0 ("fresh"), which computes what the base does.
"""
import contextlib
import json
import os
import pathlib
import random
import sys
import tempfile
import warnings

warnings.simplefilter("ignore")
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "families"))
sys.dont_write_bytecode = True
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
from datasets import Dataset
from families import from_gguf
from peft import PeftModel
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import SequentialSampler
from transformers import PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

QWEN = HERE.parent / "qwen3"
VOCAB, EOS, PAIRS, BATCH, STEPS, RATE = 512, 511, 10, 2, 20, 5e-4


def pairs():
    rng = random.Random(5)
    ids = lambda low, high: [rng.randrange(20, 500) for _ in range(rng.randint(low, high))]
    return [{"prompt": ids(4, 9), "chosen": ids(3, 9), "rejected": ids(3, 9)} for _ in range(PAIRS)]


def rated(pairs):
    """Good and bad answers in turn, to prompts that differ within a batch."""
    both = zip(pairs, pairs[1:] + pairs[:1])
    return [{"prompt": p["prompt"], "completion": [p, q][i % 2][["chosen", "rejected"][i % 2]], "label": i % 2 == 0} for i, (p, q) in enumerate(both)]


def tokenizer():
    words = {word(i): i for i in range(VOCAB)}
    inner = Tokenizer(models.WordLevel(words, unk_token=word(0)))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=word(EOS), pad_token=word(1), unk_token=word(0))


def word(id):
    """A token's text. None begins with another: special tokens are found anywhere in a text."""
    return f"<{id}>"


def text(ids):
    return "".join(" " + word(i) for i in ids)


def model(fresh):
    base = from_gguf(str(QWEN / "model.gguf"), torch.float32)
    base.config._name_or_path = base.name_or_path = "tiny-qwen3"
    found = PeftModel.from_pretrained(base, str(QWEN / "adapter"), is_trainable=True)
    with torch.no_grad():
        for name, parameter in found.named_parameters():
            if fresh and ".lora_B." in name:
                parameter.zero_()
    return found


def records(Trainer, Config, rows, fresh=False, **settings):
    """Loss and metrics of each step."""
    seen = []

    class Recorder(Trainer):
        def _get_train_sampler(self, *args, **kwargs):
            return SequentialSampler(self.train_dataset)

        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            plain = loss[0] if isinstance(loss, tuple) else loss
            seen.append({"loss": float(plain)})
            return loss

        def log(self, logs, *args, **kwargs):
            super().log(logs, *args, **kwargs)
            if "loss" in logs:
                seen[-1].update({k: v for k, v in logs.items() if k in NAMES})

    with tempfile.TemporaryDirectory() as folder:
        batch = BATCH * (2 if Trainer is KTOTrainer else 1)
        args = Config(
            output_dir=folder, per_device_train_batch_size=batch, max_steps=STEPS, learning_rate=RATE, lr_scheduler_type="constant",
            weight_decay=0.0, max_grad_norm=0.0, logging_steps=1, report_to=[], use_cpu=True, bf16=False, fp16=False,
            gradient_checkpointing=False, save_strategy="no", seed=1, disable_tqdm=True, **settings)
        trainer = Recorder(model=model(fresh), args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer())
        trainer.train()
    return seen


NAMES = ["rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies", "logps/chosen", "logps/rejected", "kl", "nll_loss", "log_odds_ratio", "log_odds_chosen"]


if __name__ == "__main__":
    pairs = pairs()
    texts = [{k: text(v) for k, v in p.items()} for p in pairs]
    ratings = rated(pairs)
    rated_texts = [{"prompt": text(r["prompt"]), "completion": text(r["completion"]), "label": r["label"]} for r in ratings]
    cases = {
        "dpo fresh": (DPOTrainer, DPOConfig, texts, dict(fresh=True, beta=0.1)),
        "dpo": (DPOTrainer, DPOConfig, texts, dict(beta=0.1)),
        "dpo robust": (DPOTrainer, DPOConfig, texts, dict(beta=0.3, loss_type="robust", label_smoothing=0.1)),
        "dpo ipo": (DPOTrainer, DPOConfig, texts, dict(beta=0.2, loss_type="ipo")),
        "dpo apo_zero": (DPOTrainer, DPOConfig, texts, dict(beta=0.3, loss_type="apo_zero")),
        "dpo sft_weight": (DPOTrainer, DPOConfig, texts, dict(beta=0.1, loss_type=["sigmoid", "sft"], loss_weights=[1.0, 0.5])),
        "kto": (KTOTrainer, KTOConfig, rated_texts, dict(beta=0.5, desirable_weight=1.5, undesirable_weight=0.75)),
        "kto apo_zero_unpaired": (KTOTrainer, KTOConfig, rated_texts, dict(beta=0.3, loss_type="apo_zero_unpaired")),
        "orpo": (ORPOTrainer, ORPOConfig, texts, dict(beta=0.1, max_length=64)),
        "simpo": (CPOTrainer, CPOConfig, texts, dict(beta=2.0, loss_type="simpo", simpo_gamma=0.5, cpo_alpha=0.25, max_length=64)),
    }
    wanted = sys.argv[1:] or list(cases)
    found = {}
    for name in wanted:
        Trainer, Config, rows, settings = cases[name]
        with contextlib.redirect_stdout(sys.stderr):
            found[name] = records(Trainer, Config, rows, **settings)
        print(name, found[name][0], found[name][-1], file=sys.stderr)
    print(json.dumps({"pairs": pairs, "rated": ratings, "eos": EOS, "rate": RATE, "cases": found}, indent=None, separators=(",", ":")))
