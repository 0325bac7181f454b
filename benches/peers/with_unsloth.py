"""Times training steps of unsloth on models with random weights of a real shape, on one CUDA GPU. Prints a JSON line per run.

  python3 benches/peers/with_unsloth.py llama3.1-8b --batch 4 --sequence 2048 --variants unsloth unsloth+checkpointing+nf4

The step is that of its trainer: autocast in bf16, its fused loss, clipped gradients, AdamW. `checkpointing` is unsloth's own, which keeps the
inputs of layers in host memory, and with `nf4` its default. Needs unsloth with its packages, and no network.
"""

import argparse
import contextlib
import gc
import json
import os
import sys
import tempfile
import time
import traceback

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "UNSLOTH_DISABLE_STATISTICS": "1"}

with contextlib.redirect_stdout(sys.stderr):
    import unsloth  # before the packages that it changes
import pytorch
import torch

PARTS = ["checkpointing", "nf4"]
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def write_model(name, folder):
    """Random weights in bf16, and a tokenizer of bytes, as unsloth reads a model from a folder. Returns the size of the vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    model_class, config = pytorch.shape(name)
    config.bos_token_id, config.eos_token_id, config.pad_token_id = 0, 1, 2
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model_class(config).save_pretrained(folder)
    torch.set_default_dtype(torch.float32)
    names = ["<s>", "</s>", "<pad>", *pre_tokenizers.ByteLevel.alphabet()]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    return config.vocab_size


def measure(a, name, folder, vocabulary, parts):
    loader = unsloth.FastModel if name in pytorch.GEMMA4 else unsloth.FastLanguageModel
    start = time.perf_counter()
    model, _ = loader.from_pretrained(folder, max_seq_length=a.sequence, dtype=torch.bfloat16, load_in_4bit="nf4" in parts,
                                      local_files_only=True)
    model = loader.get_peft_model(model, r=a.rank, lora_alpha=2 * a.rank, lora_dropout=0, bias="none", target_modules=TARGETS,
                                  use_gradient_checkpointing="unsloth" if "checkpointing" in parts else False)
    loader.for_training(model)
    loaded = time.perf_counter() - start
    figures, _ = pytorch.time_steps(model, vocabulary, a.batch, a.sequence, a.steps)
    return {**figures, "load_s": round(loaded, 1), "program": f"unsloth {unsloth.__version__}"}


def variant(text):
    first, *parts = text.split("+")
    if first != "unsloth" or set(parts) - set(PARTS):
        raise argparse.ArgumentTypeError(f"{text!r}: expected unsloth, and some of {', '.join(PARTS)} joined by +")
    return text, parts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    models = {**pytorch.GEMMA4, **pytorch.DENSE}
    parser.add_argument("model", choices=models, metavar="model", help=", ".join(models))
    parser.add_argument("--variants", nargs="+", type=variant, default=[("unsloth", [])], metavar="variant")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--steps", type=int, default=8, help="timed steps, after three others")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = write_model(a.model, folder)
        gc.collect()
        torch.cuda.empty_cache()
        for text, parts in a.variants:
            try:
                with contextlib.redirect_stdout(sys.stderr):  # unsloth prints a banner
                    result = measure(a, a.model, folder, vocabulary, parts)
            except Exception as error:
                traceback.print_exc()
                result = {"error": f"{type(error).__name__}: {error}".split(". ")[0].splitlines()[0]}
            row = {"model": a.model, "variant": text, "batch": a.batch, "sequence": a.sequence, "rank": a.rank}
            print(json.dumps({**row, **result}), flush=True)
            gc.collect()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
