"""llama.cpp (of llama-cpp-python) loads the exports, and its results agree with ours.

    check_llama_cpp.py FOLDER      (tests/consumers/main.rs writes the folder and runs this)

Logits are compared on an F32 copy of the base: on quantized matrices llama.cpp rounds the activations too, which hides all other
differences. llama.cpp reads GELU from an f16 table, which causes a difference of 1e-4 in Gemma and none in families with SiLU.
"""
import json
import os
import shutil
import sys
import time

import llama_cpp
import numpy as np
from figures import different, faults, figure, relative
from gguf import GGUFReader
from safetensors.numpy import load_file

FOLDER = sys.argv[1]
LOGITS = 5e-4  # norm of the difference over the norm
WRONG = 5e-3   # the least difference of an adapter whose rows are in the wrong order, or that is not applied
SLOPE = 1e-3   # deviation from 1 of the slope of the adapter's effect
PERMUTED = {"llama", "granite", "granitemoe", "mistral3", "smollm3"}  # llama.cpp's converter reorders the rows of queries and keys
F32 = 0        # number of ggml's type
ERROR = 4      # number of ggml's log level


@llama_cpp.llama_log_callback
def log(level, text, _):
    if level == ERROR:
        sys.stderr.buffer.write(text)


llama_cpp.llama_log_set(log, llama_cpp.ctypes.c_void_p(0))


def model(base, adapters=(), **options):
    """Loads a model with f32 keys and values, and adapters as (file, weight)."""
    usual = dict(n_ctx=256, n_batch=256, n_ubatch=256, n_threads=1, logits_all=True, type_k=F32, type_v=F32, flash_attn=False, verbose=False)
    llm = llama_cpp.Llama(os.path.join(FOLDER, base), **{**usual, **options})
    loaded = [llama_cpp.llama_adapter_lora_init(llm.model, os.path.join(FOLDER, path).encode()) for path, _ in adapters]
    assert all(loaded), f"llama.cpp does not load one of {adapters}"
    if loaded:
        pointers = (llama_cpp.llama_adapter_lora_p_ctypes * len(loaded))(*loaded)
        weights = (llama_cpp.ctypes.c_float * len(loaded))(*[weight for _, weight in adapters])
        assert llama_cpp.llama_set_adapters_lora(llm.ctx, pointers, len(loaded), weights) == 0, adapters
    return llm


def logits(llm, tokens):
    llm.reset()
    llm.eval(tokens)
    return np.array(llm.scores[:len(tokens)], np.float64)


def without_permutation(path):
    """A copy of a GGUF LoRA of a family in PERMUTED with the rows of queries and keys in transformers' order: each head's halves one after the other."""
    copy = path.replace(".gguf", "-transformers-order.gguf")
    shutil.copy(os.path.join(FOLDER, path), os.path.join(FOLDER, copy))
    base = GGUFReader(os.path.join(FOLDER, "base.gguf"))
    number = lambda key: int(np.max(base.fields[f"{architecture}.{key}"].contents()))
    heads = {"attn_q": number("attention.head_count"), "attn_k": number("attention.head_count_kv")}
    changed = 0
    for tensor in GGUFReader(os.path.join(FOLDER, copy), "r+").tensors:
        if (module := tensor.name.split(".")[2]) in heads and tensor.name.endswith("lora_b"):
            rows = tensor.data.reshape(heads[module], -1, 2, tensor.data.shape[-1])
            tensor.data[:] = rows.swapaxes(1, 2).reshape(tensor.data.shape).copy()
            changed += 1
    assert changed, "no queries and no keys"
    return copy


def speed(adapters):
    """Decoding speed in tokens per second after a prompt of 64 tokens, on one core, with the quantized file."""
    llm = model("base.gguf", adapters, logits_all=False)
    llm.eval(list(range(200, 264)))
    times = []
    for token in range(264, 328):
        started = time.perf_counter()
        llm.eval([token])
        times.append(time.perf_counter() - started)
    return 1 / sorted(times)[len(times) // 2]


def greedy(llm, prompt, most, stop):
    reply = []
    for token in llm.generate(prompt, temp=0.0, repeat_penalty=1.0):
        if token in stop or len(reply) == most:
            break
        reply.append(int(token))
    return reply


metadata = GGUFReader(os.path.join(FOLDER, "base.gguf")).fields
architecture = metadata["general.architecture"].contents()
layers = int(metadata[f"{architecture}.block_count"].contents())
print(architecture, "llama-cpp-python", llama_cpp.__version__)
cases = json.load(open(os.path.join(FOLDER, "cases.json")))
for case in cases:
    at = lambda name: os.path.join("cases", case["name"], name)
    ours = {k: v.astype(np.float64) for k, v in load_file(os.path.join(FOLDER, at("ours.safetensors"))).items() if k != "tokens"}
    tokens = [int(t) for t in load_file(os.path.join(FOLDER, at("ours.safetensors")))["tokens"]]
    base, effect = ours["base"], ours["adapted"] - ours["base"]
    rows = len(base)
    alone = logits(model("base-f32.gguf"), tokens)[:rows]
    figure(f"{case['name']}: base alone", relative(base, alone), LOGITS)
    runs = {"gguf-lora": ("base-f32.gguf", [(at("adapter.gguf"), 1.0)]),
            "gguf-lora-f16": ("base-f32.gguf", [(at("adapter-f16.gguf"), 1.0)]),
            "merged": (at("merged.gguf"), [])}
    if case["parts"]:
        runs["its parts, weighted by llama.cpp"] = (
            "base-f32.gguf", [(os.path.join("cases", part, "adapter.gguf"), weight) for part, weight in case["parts"]])
    for name, (file, adapters) in runs.items():
        found = logits(model(file, adapters), tokens)[:rows]
        if adapters and not case["applied"]:
            different(f"{case['name']}, {name}, which llama.cpp does not apply in full: logits", relative(ours["adapted"], found), WRONG)
            continue
        # In many layers of experts, one chooses another expert where the adapter is rounded.
        most = WRONG if "f16" in name and layers > 10 else LOGITS
        figure(f"{case['name']}, {name}: logits", relative(ours["adapted"], found), most)
        slope = float(((found - alone) * effect).sum() / (effect * effect).sum())
        figure(f"{case['name']}, {name}: effect of {relative(base, ours['adapted']):.2f}, slope from 1", abs(slope - 1), SLOPE)
    if architecture in PERMUTED:
        found = logits(model("base-f32.gguf", [(without_permutation(at("adapter.gguf")), 1.0)]), tokens)[:rows]
        different(f"{case['name']}, gguf-lora without the permutation: logits", relative(ours["adapted"], found), WRONG)
    # The quantized files must load and have an effect.
    for name, (file, adapters) in {"quantized base": ("base.gguf", [(at("adapter.gguf"), 1.0)]),
                                   "merged into the quantized base": (at("merged-q8_0.gguf"), [])}.items():
        found = logits(model(file, adapters), tokens)[:rows]
        if not adapters or case["applied"]:
            figure(f"{case['name']}, {name}: logits", relative(ours["adapted"], found), case["quantized"])

replies = json.load(open(os.path.join(FOLDER, "replies.json")))
llm = model("base-f32.gguf", [(os.path.join("cases", replies["case"], "adapter.gguf"), 1.0)])
different = [r for r in replies["replies"] if greedy(llm, r["prompt"], replies["most"], replies["stop"]) != r["reply"]]
figure(f"greedy replies that differ, of {len(replies['replies'])}", len(different), 0)
adapter = [(os.path.join("cases", replies["case"], "adapter.gguf"), 1.0)]
print(f"llama.cpp on one core: {speed([]):.0f} tokens/s, with the adapter {speed(adapter):.0f}")
sys.exit(bool(faults()))
