"""Compares the program with PyTorch, PEFT and Hugging Face's tokenizers on SmolLM2-135M-Instruct in Q4_1.

    compare.py PROGRAM MODEL.gguf DEMO FOLDER [--break rotary|merge|end]

DEMO is LLaMA-Factory's data folder. FOLDER takes the files of the comparison. With --break, the program gets a copy of the model
with a mistake and PyTorch the sound one: some comparison must fail.
"""
import argparse
import json
import os
import re
import shutil
import sys

import exports
import faults
import llama
import oracle
import texts
import torch
from program import Failed, Program
from safetensors.torch import load_file
from table import Table

TOKENS = 64
STEPS = 20
SPACING = 6  # of the tokens whose log-probabilities are compared
ROWS = 4  # of Wikipedia
RATE = 1e-3
LOSS, GRADIENT, TRAINED = 1e-5, 5e-5, 1e-4  # limits
DATASETS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../datasets")


def arguments():
    parser = argparse.ArgumentParser()
    [parser.add_argument(name) for name in ("program", "model", "demo", "folder")]
    parser.add_argument("--break", dest="fault", choices=faults.FAULTS)
    return parser.parse_args()


def tokens(table, program, words, demo):
    """Compares ids: each sample is given as text or turns and as ids, and `inspect` must find each pair equal."""
    for name, samples in (("texts of datasets/ and LLaMA-Factory", texts.plain(DATASETS, demo)), ("hard strings", texts.HARD)):
        pairs = {tuple(words.ids(text)): text for text in samples}
        given = [{"text": text} for text in pairs.values()]
        ids = [{"input_ids": [*found, words.end_of_text]} for found in pairs]
        count = equal(program, given + ids)
        table.same(f"token ids of {len(pairs)} {name}, {sum(map(len, pairs))} ids", f"{count} equal", f"{len(pairs)} equal")
    chats = texts.conversations(DATASETS)
    expected = [words.conversation(chat) for chat in chats]
    given = [{"messages": chat} for chat in chats]
    ids = [{"input_ids": ids, "labels": labels} for ids, labels in expected]
    table.same(f"token ids and loss tokens of {len(chats)} conversations", f"{equal(program, given + ids)} equal", f"{len(chats)} equal")


def equal(program, samples):
    """-> number of samples that equal an earlier one"""
    program.rows("ids.jsonl", samples)
    found = re.search(r"(\d+) of (\d+) samples are exact duplicates", program.run("inspect", "ids.jsonl", "--base", program.base))
    return int(found[1]) if found else 0


def losses(table, program, model, rows):
    program.recipe("trained.toml", program.rows("steps.jsonl", rows["steps"]), "trained", rate=RATE, lora='init_from = "start"')
    loss = program.losses("trained.toml", program.rows("wiki.jsonl", rows["wiki"]))[0]
    table.relative(f"loss of {len(rows['wiki'])} × {TOKENS} tokens of Wikipedia, against f64", loss, oracle.exact_loss(model, rows["wiki"]), LOSS)


def log_probabilities(table, program, model, row):
    """Compares the log-probabilities of single tokens: `eval` gives the loss of each of several files, which have one loss token."""
    positions = list(range(SPACING, len(row["input_ids"]), SPACING))
    only = lambda t: [token if i == t else oracle.IGNORED for i, token in enumerate(row["input_ids"])]
    files = [program.rows(f"token{t}.jsonl", [{**row, "labels": only(t)}]) for t in positions]
    found = torch.tensor(program.source_losses("trained.toml", files), dtype=torch.float64)
    expected = -oracle.exact_log_probabilities(model, row["input_ids"])[positions]
    table.most(f"log-probabilities of {len(positions)} tokens, against f64", float((found - expected).norm() / expected.norm()), LOSS,
               f"mean {-float(found.mean()):.9f}", f"{-float(expected.mean()):.9f}")


def gradients(table, program, adapted, row):
    """Compares gradients with those in f64, beside PyTorch's own in f32."""
    program.recipe("gradients.toml", program.rows("gradients.jsonl", [row]), "gradients", lora='init_from = "start"')
    program.run("check", "gradients.toml", "--gradients", "gradients.safetensors", "--measure", 0)
    found = {name: tensor.double() for name, tensor in load_file(program.at("gradients.safetensors")).items()}
    expected, single = oracle.gradients(adapted, row), oracle.single_gradients(adapted, row)
    table.same("gradients: tensors", len(found.keys() & expected.keys()), len(expected))
    if found.keys() != expected.keys():
        return
    norm = lambda tensors: float(sum(tensor.square().sum() for tensor in tensors)) ** 0.5
    of_all = lambda values: norm(values[name] - expected[name] for name in expected) / norm(expected.values())
    of_each = lambda values: {name: float((values[name] - expected[name]).norm() / expected[name].norm()) for name in expected}
    ours, theirs = of_each(found), of_each(single)
    # f32 rounds alike in both. What PyTorch's own f32 loses is no fault.
    limit = max(GRADIENT, of_all(single))
    table.most("gradients of A and B against f64: all", of_all(found), limit, f"norm {norm(found.values()):.6f}", f"{norm(expected.values()):.6f}")
    table.row("the same for PyTorch in f32", "", f"{norm(single.values()):.6f}", f"{of_all(single):.1e}", "", True)
    worst, their_worst = max(ours, key=ours.get), max(theirs, key=theirs.get)
    short = lambda name: name.removeprefix("base_model.model.model.layers.").removesuffix(".weight")
    table.most(f"gradients: the worst tensor, {short(worst)}", ours[worst], 10 * GRADIENT, "", f"in f32 {theirs[worst]:.1e}; worst {theirs[their_worst]:.1e}, {short(their_worst)}")
    with open(program.at("gradients.json"), "w") as file:
        json.dump({name: {"ours": ours[name], "f32": theirs[name], "norm": float(expected[name].norm())} for name in expected}, file, indent=1)


def training(table, program, adapted, samples):
    """Compares twenty steps. -> the adapter's folder"""
    program.run("trained.toml", "--fresh", "--quiet")
    steps = [json.loads(line) for line in open(program.at("trained/metrics.jsonl"))]
    steps = [step for step in steps if "grad_norm" in step]
    losses, norms = oracle.train(adapted, samples, RATE)
    table.same("training: steps", len(steps), len(losses))
    worst = lambda key, expected: max(abs(step[key] - value) / value for step, value in zip(steps, expected))
    table.most(f"losses of {STEPS} AdamW steps", worst("loss", losses), TRAINED, f"{steps[-1]['loss']:.9f} in the last", f"{losses[-1]:.9f}")
    table.most("gradient norms of these", worst("grad_norm", norms), 10 * TRAINED, f"{steps[-1]['grad_norm']:.6f}", f"{norms[-1]:.6f}")
    return "trained"


def compare(table, program, words, options):
    """Makes all comparisons; with a fault, those until the first that finds it."""
    noticed = lambda: options.fault and table.faults
    with table.section("token ids", Failed):
        tokens(table, program, words, options.demo)
        if not options.fault:
            llama.tokens(table, options.model, words, [*texts.plain(DATASETS, options.demo), *texts.HARD])
    if noticed():
        return
    model = oracle.model(options.model)
    rows = {"wiki": texts.wiki(options.demo, words, ROWS, TOKENS), "steps": texts.answers(options.demo, words, STEPS, TOKENS)}
    adapted = oracle.adapted(model, 8, 16, 7)
    adapted.save_pretrained(program.at("start"))
    with table.section("loss", Failed):
        losses(table, program, model, rows)
    if noticed():
        return
    with table.section("log-probabilities", Failed):
        log_probabilities(table, program, model, rows["wiki"][0])
    with table.section("gradients", Failed):
        gradients(table, program, adapted, rows["steps"][0])
    with table.section("replies of the base", Failed):
        exports.replies(table, program, model, words, "base")
    if options.fault:
        return
    with table.section("training and exports", Failed):
        trained = training(table, program, adapted, rows["steps"])
        held = ("wiki.jsonl", rows["wiki"])
        copy = llama.base(table, program, model, program.base, rows["wiki"])
        loaded = exports.adapters(table, program, model, words, trained, held, copy)
        os.remove(copy)
        exports.merges(table, program, words, trained, loaded, held)


def main():
    options = arguments()
    shutil.rmtree(options.folder, ignore_errors=True)
    os.makedirs(options.folder)
    base = options.model
    if options.fault:
        base = os.path.join(options.folder, "broken.gguf")
        faults.broken(options.model, base, options.fault)
    program, table = Program(options.program, base, os.path.abspath(options.folder)), Table()
    compare(table, program, oracle.Words(options.model), options)
    table.finish()


torch.manual_seed(0)
main()
