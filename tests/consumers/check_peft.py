"""PEFT loads the exports and uses every tensor, and its results agree with ours.

    check_peft.py FOLDER      (tests/consumers/main.rs writes the folder and runs this)

The base is transformers' model with the dequantized weights of the quantized file, in float32.
"""
import json
import os
import sys
import warnings

import peft
import torch
import transformers
from base_model import architecture, from_gguf, gemma4
from figures import faults, figure, judge
from safetensors.torch import load_file
from transformers import Gemma3Config, Gemma3ForConditionalGeneration, Gemma4Config, Gemma4ForConditionalGeneration

from gemma4 import logits, lora_key, relative  # of tests/golden, which base_model finds

FOLDER = sys.argv[1]
LOGITS = 2e-5  # norm of the difference over the norm
BASE = os.path.join(FOLDER, "base.gguf")
ARCHITECTURE = architecture(BASE)

def load(model, folder):
    """Loads an adapter. Tensors that PEFT skips or initialises count as faults."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        adapted = peft.PeftModel.from_pretrained(model, folder, autocast_adapter_dtype=False).eval()
    messages = [str(w.message) for w in caught if "missing" in str(w.message) or "unexpected" in str(w.message)]
    stored = load_file(os.path.join(folder, "adapter_model.safetensors"))
    loaded = {lora_key(name): tensor for name, tensor in adapted.state_dict().items() if "lora_" in name}
    same = stored.keys() == loaded.keys() and all(torch.equal(stored[k].float(), loaded[k].float()) for k in stored)
    if messages or not same:
        judge(False, " ".join([f"{folder}: PEFT did not load all tensors of the file", *messages, *sorted(stored.keys() ^ loaded.keys())]))
    return adapted


def with_towers():
    """The class of Google's checkpoints, with the base as its text model and without the use of vision and audio towers."""
    causal = from_gguf(BASE, torch.float32)
    if ARCHITECTURE == "gemma4":
        text = gemma4.config(*gemma4.read(BASE)).to_dict()
        whole = Gemma4ForConditionalGeneration(Gemma4Config(text_config=text, vision_config=None, audio_config=None))
    else:
        tower = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1, image_size=16, patch_size=8)
        whole = Gemma3ForConditionalGeneration(Gemma3Config(text_config=causal.config.to_dict(), vision_config=tower, mm_tokens_per_image=4))
    whole.model.language_model.load_state_dict(causal.model.state_dict())
    whole.lm_head.weight = whole.model.language_model.embed_tokens.weight
    return whole.eval().requires_grad_(False)


def run(model, tokens):
    with torch.no_grad():
        return logits(model, tokens)


def greedy(model, prompt, most, stop):
    ids, reply = list(prompt), []
    while len(reply) < most:
        token = int(run(model, torch.tensor(ids))[-1].argmax())
        if token in stop:
            break
        ids.append(token)
        reply.append(token)
    return reply


print(ARCHITECTURE, "peft", peft.__version__, "transformers", transformers.__version__, "torch", torch.__version__)
for case in json.load(open(os.path.join(FOLDER, "cases.json"))):
    folder = os.path.join(FOLDER, "cases", case["name"])
    ours = load_file(os.path.join(folder, "ours.safetensors"))
    tokens, rows = ours["tokens"].long(), len(ours["base"])
    name = case["name"]
    figure(f"{name}: base alone", relative(ours["base"], run(from_gguf(BASE, torch.float32), tokens)[:rows]), LOGITS)
    figure(f"{name}, peft: logits", relative(ours["adapted"], run(load(from_gguf(BASE, torch.float32), folder), tokens)[:rows]), LOGITS)
    inside = os.path.join(folder, "peft-conditional-generation")
    if ARCHITECTURE in ("gemma4", "gemma3"):
        figure(f"{name}, peft-conditional-generation: logits", relative(ours["adapted"], run(load(with_towers(), inside), tokens)[:rows]), LOGITS)
    if case["original"]:
        model = peft.PeftModel.from_pretrained(from_gguf(BASE, torch.float32), os.path.join(FOLDER, case["original"]), autocast_adapter_dtype=False)
        figure(f"{name}, the folder that it was read from: logits", relative(ours["adapted"], run(model.eval(), tokens)[:rows]), LOGITS)
    if case["parts"]:
        model = from_gguf(BASE, torch.float32)
        for i, (part, _) in enumerate(case["parts"]):
            path = os.path.join(FOLDER, "cases", part)
            model = peft.PeftModel.from_pretrained(model, path, adapter_name=str(i), autocast_adapter_dtype=False) if i == 0 \
                else (model.load_adapter(path, adapter_name=str(i), autocast_adapter_dtype=False), model)[1]
        names, weights = [str(i) for i in range(len(case["parts"]))], [weight for _, weight in case["parts"]]
        model.add_weighted_adapter(names, weights, "sum", combination_type="cat")
        model.set_adapter("sum")
        figure(f"{name}, its parts added up by PEFT: logits", relative(ours["adapted"], run(model.eval(), tokens)[:rows]), LOGITS)

replies = json.load(open(os.path.join(FOLDER, "replies.json")))
model = load(from_gguf(BASE, torch.float32), os.path.join(FOLDER, "cases", replies["case"]))
different = [r for r in replies["replies"] if greedy(model, r["prompt"], replies["most"], replies["stop"]) != r["reply"]]
figure(f"greedy replies that differ, of {len(replies['replies'])}", len(different), 0)
sys.exit(bool(faults()))
