"""Times steps of TRL's GRPOTrainer, with its default engine, on a model of transformers with random weights of a real shape, on one CUDA GPU.
Each step draws 8 completions of 256 tokens for each of 8 prompts. Prints a JSON line.

  python3 benches/peers/trl_grpo.py e2b

Needs torch, transformers, peft, trl and datasets.
"""

import json
import os
import sys
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import pytorch as peers
import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

PROMPTS, GENERATIONS, TOKENS, STEPS = 8, 8, 256, 3


def tokenizer():
    """Bytes as tokens. No completion of random weights is likely to end itself."""
    vocab = {token: i for i, token in enumerate(["<s>", "</s>", "<pad>", *pre_tokenizers.ByteLevel.alphabet()])}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


class Times(TrainerCallback):
    def __init__(self):
        self.seconds = []

    def on_step_begin(self, *_, **__):
        torch.cuda.synchronize()
        self.start = time.perf_counter()

    def on_step_end(self, *_, **__):
        torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - self.start)


def main():
    name = sys.argv[1]
    model_class, config = peers.shape(name)
    config.bos_token_id, config.eos_token_id, config.pad_token_id = 0, 1, 2
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = model_class(config)
    torch.set_default_dtype(torch.float32)
    times, folder = Times(), tempfile.mkdtemp()
    settings = GRPOConfig(
        output_dir=folder, per_device_train_batch_size=GENERATIONS, gradient_accumulation_steps=PROMPTS, num_generations=GENERATIONS,
        max_completion_length=TOKENS, max_steps=STEPS, bf16=True, report_to=[], save_strategy="no", logging_steps=1)
    prompts = Dataset.from_dict({"prompt": [f"Question {i}: what is {i} plus {i}? " * 2 for i in range(PROMPTS * STEPS)]})
    adapter = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
    trainer = GRPOTrainer(
        model=model, args=settings, train_dataset=prompts, processing_class=tokenizer(), peft_config=adapter, callbacks=[times],
        reward_funcs=lambda completions, **_: [float(len(set(text))) for text in completions])
    trainer.train()
    logs = [line for line in trainer.state.log_history if "completions/mean_length" in line]
    print(json.dumps(dict(
        program="TRL GRPOTrainer", model=name, prompts=PROMPTS, generations=GENERATIONS, seconds=[round(s, 2) for s in times.seconds],
        mean_length=[line["completions/mean_length"] for line in logs], gib=round(torch.cuda.max_memory_allocated() / 2**30, 2))))


if __name__ == "__main__":
    main()
