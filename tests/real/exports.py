"""Every export of a trained adapter, loaded by the programs that it is for."""
import os

import llama
import numpy as np
import oracle
from families import lora_to_gguf
from gguf import GGUFReader
from program import Failed
from safetensors.torch import load_file

PROMPTS = ("Who are you?", "What is the capital of France?")
MOST = 12         # tokens of a reply
NEAR = 1e-3       # distance of two logits that f32 may exchange
# Limits of the loss of merged files, beside the adapter's. The base's own Q4_1 rounds the adapter away.
MERGES = {"f16": 1e-4, "q8_0": 1e-2, "keep": None}


def adapters(table, program, model, words, trained, rows, copy):
    """Compares the PEFT folder and the GGUF LoRA of a run; `copy`: the base in F32. -> the model with the adapter, as PEFT loads it"""
    program.run("export", trained, "--to", "gguf-lora", "--out", "exported", "--unverified")
    loaded = oracle.load(model, program.at(trained))
    adapted = program.losses("trained.toml", rows[0], trained)[1]
    table.relative("loss with the adapter, in PEFT, f64", adapted, oracle.exact_loss(loaded, rows[1]), 1e-5)
    file = program.at("exported/adapter.gguf")
    table.most("tensors of gguf-lora and of PEFT's folder", gguf_difference(program, trained, file), 0)
    table.relative("loss with gguf-lora", program.losses("trained.toml", rows[0], "exported/adapter.gguf")[1], adapted, 1e-7)
    replies(table, program, loaded, words, "adapter", trained)
    llama.adapter(table, program, loaded, words, copy, file, rows[1], adapted, PROMPTS)
    return loaded


def gguf_difference(program, trained, file):
    """-> largest difference between the tensors of a GGUF LoRA and those of PEFT's folder in llama.cpp's order"""
    reader = GGUFReader(file)
    stored = {tensor.name: tensor.data for tensor in reader.tensors}
    weights = load_file(program.at(os.path.join(trained, "adapter_model.safetensors")))
    expected = lora_to_gguf(oracle.plain_model(program.base), weights)
    names = {f"{name}.lora_{side}" for name in expected for side in "ab"}
    assert stored.keys() == names, sorted(stored.keys() ^ names)[:4]
    return max(float(np.abs(stored[f"{name}.lora_{side}"] - part).max()) for name, pair in expected.items() for side, part in zip("ab", pair))


def merges(table, program, words, trained, adapted, rows):
    """Compares merged files with the adapter: that in the base's own format must be refused."""
    try:
        program.run("merge", trained, "--base", program.base, "--type", "keep", "--out", "keep.gguf", "--data", rows[0])
        refused = "written"
    except Failed as error:
        refused = "refused" if "choose the type" in str(error) else str(error)
    table.same("merge in the base's own Q4_1, which rounds the adapter away", refused, "refused")
    expected = oracle.exact_loss(adapted, rows[1])
    for kind, limit in MERGES.items():
        file = f"{kind}.gguf"
        anyway = ["--unverified"] if limit is None else ["--data", rows[0]]
        program.run("merge", trained, "--base", program.base, "--type", kind, "--out", file, *anyway, "--force")
        merged = oracle.model(program.at(file))
        loss = oracle.exact_loss(merged, rows[1])
        what = f"loss of the {kind} merge in PyTorch, beside the adapter in PEFT"
        if limit is None:
            table.row(what, loss, expected, f"{abs(loss - expected) / expected:.1e}", "", True)
        else:
            table.relative(what, loss, expected, limit)
        ours = program.losses("trained.toml", rows[0], base=program.at(file))[0]
        table.relative(f"loss of the {kind} merge", ours, loss, 1e-5)
        replies(table, program, merged, words, f"{kind} merge", base=file)
        llama.merge(table, program, merged, words, kind, program.at(file), rows[1], ours, PROMPTS)
        os.remove(program.at(file))


def replies(table, program, model, words, name, *adapter, base=None):
    """Compares greedy replies id by id. Where PyTorch's two likeliest tokens are too near for f32, the rest is not compared."""
    for question in PROMPTS:
        prompt = words.prompt([{"role": "user", "content": question}])
        expected, gaps = oracle.reply(model, prompt, MOST, (words.end_of_turn, words.end_of_text))
        answer = program.reply(question, MOST, *adapter, base=base)
        ids = [i for i in answer["ids"] if i not in (words.end_of_turn, words.end_of_text)]
        until = next((i for i, gap in enumerate(gaps) if gap < NEAR), MOST)
        good = ids[:until] == expected[:until] and answer["prompt_tokens"] == len(prompt)
        same = "none" if ids == expected else f"none in {until} tokens, then a tie" if good else "different"
        table.row(f"reply of the {name}: {question}", words.text(ids), words.text(expected), same, "none", good)
