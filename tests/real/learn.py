"""Trains the real model on a thousand questions with answers, and compares the validation loss with PEFT's over the same steps, with the
defaults of other trainers, and with what `check --lr` proposes. For a GPU; prints a JSON line per run.

  python3 tests/real/learn.py PROGRAM MODEL.gguf alpaca_en_demo.json FOLDER [--peft-rates 5e-4 2e-3] [--rates 1e-4 2e-4 5e-4 1e-3 2e-3]

Both train in f32 with the same ids, adapter, order, batches and schedule. Needs what tests/real/install installs, and PyTorch with CUDA for PEFT.
"""
import argparse
import json
import math
import os
import random
import time

import oracle
import torch
import torch.nn.functional as nnf
from program import Program

HELD_OUT, BATCH, EPOCHS, LONGEST = 100, 40, 2, 512
# Keys of a recipe that other trainers' examples set: unsloth's notebooks (8 samples, linear, 5 steps of warm-up, 60 steps), axolotl's
# Llama 3.2 1B (4 packed rows of 2048, cosine, 10 steps of warm-up, 1 epoch), LLaMA-Factory's Qwen 3 (8 samples, cosine, 10 % of the steps,
# 3 epochs).
OTHERS = {
    "unsloth": {"train.learning_rate": 2e-4, "train.batch_size": 8, "train.lr_scheduler": '"linear"', "train.warmup_steps": 5, "train.max_steps": 60},
    "axolotl": {"train.learning_rate": 2e-4, "train.batch_size": 4, "data.packing": "true", "data.max_seq_len": 2048, "train.warmup_steps": 10},
    "LLaMA-Factory": {"train.learning_rate": 1e-4, "train.batch_size": 8, "train.warmup_steps": 33, "train.epochs": 3, "lora.rank": 8, "lora.alpha": 16},
}


def samples(words, path):
    """-> training and validation samples in a fixed random order, each of at most LONGEST tokens"""
    found = []
    for item in json.load(open(path, encoding="utf-8")):
        question = f"{item['instruction']}\n{item['input']}".strip()
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": item["output"]}]
        ids, labels = words.conversation(messages)
        if len(ids) <= LONGEST and any(label != oracle.IGNORED for label in labels):
            found.append({"input_ids": ids, "labels": labels})
    random.Random(0).shuffle(found)
    return found[HELD_OUT:], found[:HELD_OUT]


def evaluations(folder):
    with open(f"{folder}/metrics.jsonl") as file:
        events = [json.loads(line) for line in file]
    return {event["step"]: round(event["eval_loss"], 4) for event in events if event["event"] == "evaluation"}


def ours(program, name, keys):
    start = time.perf_counter()
    sets = [part for key, value in {**keys, "output.dir": json.dumps(name)}.items() for part in ("--set", f"{key}={value}")]
    program.run("learn.toml", *sets)
    found = evaluations(program.at(name))
    print(json.dumps({"program": "rullama-train", "run": name, "validation": found, "seconds": round(time.perf_counter() - start, 1)}), flush=True)


def padded(batch):
    """-> ids, labels and attention mask on the GPU"""
    pad = lambda key, value: torch.nn.utils.rnn.pad_sequence([torch.tensor(s[key]) for s in batch], batch_first=True, padding_value=value).cuda()
    ids = pad("input_ids", 0)
    lengths = torch.tensor([len(s["input_ids"]) for s in batch]).cuda()
    return ids, pad("labels", oracle.IGNORED), torch.arange(ids.shape[1], device="cuda")[None] < lengths[:, None]


def batch_loss(model, batch):
    """-> (sum of the loss, number of loss tokens)"""
    ids, labels, mask = padded(batch)
    logits = model(input_ids=ids, attention_mask=mask.long(), use_cache=False).logits[:, :-1].flatten(0, 1)
    return nnf.cross_entropy(logits, labels[:, 1:].flatten(), ignore_index=oracle.IGNORED, reduction="sum"), int((labels[:, 1:] != oracle.IGNORED).sum())


@torch.no_grad()
def validation(model, held_out):
    parts = [batch_loss(model, held_out[i:i + BATCH]) for i in range(0, len(held_out), BATCH)]
    return round(sum(float(loss) for loss, _ in parts) / sum(count for _, count in parts), 4)


def peft(base, adapter, train, held_out, rate, warmup, every):
    """Trains with PEFT in f32 as the program does."""
    start = time.perf_counter()
    model = oracle.load(base, adapter).cuda()
    model.requires_grad_(False)
    parameters = [p for name, p in model.named_parameters() if "lora_" in name]
    [p.requires_grad_(True) for p in parameters]
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.0)
    batches = [train[i:i + BATCH] for i in range(0, len(train), BATCH)] * EPOCHS
    scale = lambda step: step / warmup if step < warmup else (1 + math.cos(math.pi * (step - warmup) / (len(batches) - warmup))) / 2
    found = {0: validation(model, held_out)}
    for step, batch in enumerate(batches):
        optimizer.param_groups[0]["lr"] = rate * scale(step)
        loss, count = batch_loss(model, batch)
        (loss / count).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % every == 0 or step + 1 == len(batches):
            found[step + 1] = validation(model, held_out)
    print(json.dumps({"program": "PEFT", "run": f"peft-{rate:g}", "validation": found, "seconds": round(time.perf_counter() - start, 1)}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("folder")
    parser.add_argument("--rates", type=float, nargs="*", default=[1e-4, 2e-4, 5e-4, 1e-3, 2e-3])
    parser.add_argument("--peft-rates", type=float, nargs="*", default=[5e-4, 2e-3])
    a = parser.parse_args()
    os.makedirs(a.folder, exist_ok=True)
    program = Program(a.program, a.model, a.folder)
    train, held_out = samples(oracle.Words(a.model), a.data)
    tokens = [sum(len(sample["input_ids"]) for sample in part) for part in (train, held_out)]
    print(f"{len(train)} samples of {tokens[0]} tokens, {len(held_out)} of {tokens[1]} held out", flush=True)
    program.rows("train.jsonl", train), program.rows("valid.jsonl", held_out)
    base = oracle.model(a.model)
    start = oracle.adapted(base, 16, 32, 1)
    for name, parameter in start.named_parameters():
        if "lora_B" in name:
            parameter.data.zero_()
    start.save_pretrained(program.at("start"))
    steps = -(-len(train) // BATCH) * EPOCHS
    every, warmup = -(-steps // 4), max(1, steps // 20)
    recipe = program.recipe("learn.toml", "train.jsonl", "runs", rank=16, alpha=32, tokens=LONGEST, rate=2e-4, warmup=warmup)
    with open(program.at(recipe)) as file:
        text = file.read().replace("val_size = 0", 'valid = "valid.jsonl"').replace('"f32"', '"auto"')
    with open(program.at(recipe), "w") as file:
        file.write(text + f"\n[eval]\nsteps = {every}\nkeep_best = false\n")
    same = {"lora.init_from": '"start"', "train.batch_size": BATCH, "train.epochs": EPOCHS}
    for rate in a.rates:
        ours(program, f"rate-{rate:g}", {**same, "train.learning_rate": rate})
    for rate in a.peft_rates:
        peft(base, program.at("start"), train, held_out, rate, warmup, every)
    for name, keys in OTHERS.items():
        ours(program, name, {"data.shuffle": "true", "eval.steps": 0, **keys})
    print(program.run("check", "learn.toml", "--lr", "--set", f"train.batch_size={BATCH}")[-1500:], flush=True)
    ours(program, "rate-5e-4-f32", {**same, "train.learning_rate": 5e-4, "device.kernels": '"f32"'})


if __name__ == "__main__":
    main()
