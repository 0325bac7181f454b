"""llama.cpp on the real model: ids, logits, and every export that it loads.

On quantized matrices llama.cpp rounds the activations too, so logits are compared on copies of the files in F32.
"""
import os

import gguf
import llama_cpp
import numpy as np
import oracle
from gguf import GGUFReader

F32 = 0               # number of ggml's type
ERROR = 4             # number of ggml's log level
LOGITS = 1e-4         # norm of the difference over the norm
LOSS = 1e-5           # of the same weights in F32
MOST = 12             # tokens of a reply
NEAR = 1e-3           # distance of two logits that f32 may exchange
# Limits of the loss where llama.cpp rounds the activations: to F16, to 8 bits in blocks.
ROUNDED = {"f16": 5e-3, "q8_0": 5e-3, "keep": 2e-2}


@llama_cpp.llama_log_callback
def log(level, text, _):
    if level == ERROR:
        print(text.decode(errors="replace"), end="", flush=True)


llama_cpp.llama_log_set(log, llama_cpp.ctypes.c_void_p(0))


def load(path, adapter=None, **options):
    """-> the model with f32 keys and values, with a GGUF LoRA if there is one"""
    usual = dict(n_ctx=256, n_batch=256, n_ubatch=256, n_threads=2, logits_all=True, type_k=F32, type_v=F32, flash_attn=False, verbose=False)
    llm = llama_cpp.Llama(path, **{**usual, **options})
    if adapter:
        loaded = llama_cpp.llama_adapter_lora_init(llm.model, adapter.encode())
        assert loaded, f"llama.cpp does not load {adapter}"
        weight = (llama_cpp.ctypes.c_float * 1)(1.0)
        assert llama_cpp.llama_set_adapters_lora(llm.ctx, (llama_cpp.llama_adapter_lora_p_ctypes * 1)(loaded), 1, weight) == 0
    return llm


def in_f32(path, copy):
    """Writes a copy with every tensor in F32. -> its path"""
    reader = GGUFReader(path)
    writer = gguf.GGUFWriter(copy, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key not in ("general.architecture", "general.file_type"):
            kind = field.types[0]
            writer.add_key_value(key, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return copy


def logits(llm, ids):
    llm.reset()
    llm.eval(ids)
    return np.array(llm.scores[:len(ids)], np.float64)


def loss(llm, rows):
    """-> mean loss of all tokens of the rows but the first ones"""
    total, count = 0.0, 0
    for row in rows:
        found = logits(llm, row["input_ids"])[:-1]
        found -= found.max(-1, keepdims=True)
        scores = found - np.log(np.exp(found).sum(-1, keepdims=True))
        total -= scores[np.arange(len(scores)), row["input_ids"][1:]].sum()
        count += len(scores)
    return float(total / count)


def relative(found, expected):
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def tokens(table, path, words, texts):
    """Compares ids of texts, control tokens included, with Hugging Face's tokenizer. Around bytes that no token spells they differ:
    Hugging Face's, as ours, merges their neighbours, llama.cpp's does not."""
    texts = [text for text in texts if not words.lacks(text)]
    llm = load(path, vocab_only=True, logits_all=False)
    different = [text for text in texts if llm.tokenize(text.encode(), add_bos=False, special=True) != words.ids(text)]
    for text in different[:4]:
        print(f"llama.cpp has other ids for {text[:200]!r}")
    table.same(f"token ids of {len(texts)} texts, in llama.cpp", f"{len(texts) - len(different)} equal", f"{len(texts)} equal")


def base(table, program, model, path, rows):
    """Compares logits and loss of the base in F32. -> the copy"""
    copy = in_f32(path, program.at("base-f32.gguf"))
    llm = load(copy)
    expected = oracle.exact_logits(model, rows[0]["input_ids"])
    table.most("logits of the base, llama.cpp in F32 against f64", relative(logits(llm, rows[0]["input_ids"]), expected), LOGITS)
    ours = program.losses("trained.toml", program.rows("wiki.jsonl", rows))[0]
    table.relative("loss of the base: ours, and llama.cpp's in F32", ours, loss(llm, rows), LOSS)
    return copy


def adapter(table, program, adapted, words, copy, file, rows, ours, questions):
    """Compares the GGUF LoRA on the base in F32. `ours`: our loss with it."""
    llm = load(copy, file)
    expected = oracle.exact_logits(adapted, rows[0]["input_ids"])
    table.most("logits with gguf-lora, llama.cpp against PEFT in f64", relative(logits(llm, rows[0]["input_ids"]), expected), LOGITS)
    table.relative("loss with gguf-lora: ours, and llama.cpp's", ours, loss(llm, rows), LOSS)
    replies(table, program, llm, adapted, words, "gguf-lora", questions, NEAR)


def merge(table, program, merged, words, kind, file, rows, ours, questions):
    """Compares a merged file: as it is, and in F32. `ours`: our loss of it."""
    copy = in_f32(file, program.at("merged-f32.gguf"))
    llm = load(copy)
    table.relative(f"loss of the {kind} merge: ours, and llama.cpp's in F32", ours, loss(llm, rows), LOSS)
    replies(table, program, llm, merged, words, f"{kind} merge in F32", questions, NEAR)
    del llm
    os.remove(copy)
    table.relative(f"loss of the {kind} merge: ours, and llama.cpp's with rounded activations", ours, loss(load(file), rows), ROUNDED[kind])


def replies(table, program, llm, model, words, name, questions, near):
    """Compares greedy replies id by id until PyTorch's two likeliest tokens are too near."""
    stop = (words.end_of_turn, words.end_of_text)
    for question in questions:
        prompt = words.prompt([{"role": "user", "content": question}])
        expected, gaps = oracle.reply(model, prompt, MOST, stop)
        ids = []
        for token in llm.generate(prompt, temp=0.0, repeat_penalty=1.0):
            if token in stop or len(ids) == MOST:
                break
            ids.append(int(token))
        until = next((i for i, gap in enumerate(gaps) if gap < near), MOST)
        good = ids[:until] == expected[:until]
        same = "none" if ids == expected else f"none in {until} tokens, then a tie" if good else "different"
        table.row(f"reply of llama.cpp, {name}: {question}", words.text(ids), words.text(expected), same, "none", good)
