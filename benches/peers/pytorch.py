"""Times training steps of PEFT on transformers' models with random weights of a real shape, on one CUDA GPU. Prints a JSON line per run.
The forward pass runs under autocast in bf16, as Trainer and TRL run it with bf16=True.

  python3 benches/peers/pytorch.py e2b qwen3-8b --batch 4 --sequence 2048 --variants plain liger liger+checkpointing+nf4

with_unsloth.py does it for unsloth. Needs torch, transformers and peft; liger-kernel for the variant liger, bitsandbytes for nf4, fla-core for fast delta nets, and with it
tilelang on Hopper GPUs, flash-qla for --delta flash-qla. A variant that fails has "error" in place of figures.
"""

import argparse
import gc
import importlib.util
import json
import os
import statistics
import sys
import time
import traceback

import torch
from peft import LoraConfig, get_peft_model

SLIDING, FULL, DELTA = "sliding_attention", "full_attention", "linear_attention"
GEMMA4 = {
    "e2b": dict(hidden_size=1536, intermediate_size=6144, num_hidden_layers=35, num_key_value_heads=1, num_kv_shared_layers=20,
                layer_types=[SLIDING] * 4 + [FULL], use_double_wide_mlp=True),
    "e4b": dict(hidden_size=2560, intermediate_size=10240, num_hidden_layers=42, num_key_value_heads=2, num_kv_shared_layers=18,
                layer_types=[SLIDING] * 5 + [FULL], use_double_wide_mlp=False),
}
QWEN35 = {
    "qwen3.5-4b": dict(hidden_size=2560, intermediate_size=9216, tie_word_embeddings=True),
    "qwen3.5-9b": dict(hidden_size=4096, intermediate_size=12288, tie_word_embeddings=False),
}
DENSE = {
    "qwen3-8b": dict(vocab_size=151936, hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, rms_norm_eps=1e-6,
                     rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0}),
    "llama3.1-8b": dict(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, rms_norm_eps=1e-5,
                        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0}),
}
MIXTURES = {
    "qwen3-30b-a3b": dict(vocab_size=151936, hidden_size=2048, intermediate_size=6144, moe_intermediate_size=768, num_hidden_layers=48,
                          num_key_value_heads=4, num_experts=128, num_experts_per_tok=8, norm_topk_prob=True, rms_norm_eps=1e-6,
                          rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0}),
}
MODELS = GEMMA4 | QWEN35 | DENSE | MIXTURES
# The parts of a variant, joined by "+": Liger's kernels, gradient checkpointing, 4-bit weights of bitsandbytes, torch.compile, and the
# adapter with its optimizer in bf16, where PEFT's default is f32.
PARTS = ["liger", "checkpointing", "nf4", "compile", "bf16-adapter"]
# The Python modules that each kind needs.
DELTA_NETS = {"flash-qla": ["fla", "flash_qla", "tilelang"], "fla": ["fla"], "transformers": []}


def gemma4(shape):
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    layers = shape["num_hidden_layers"]
    kinds = shape.pop("layer_types")
    rope = {SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
            FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0}}
    return Gemma4ForCausalLM, Gemma4TextConfig(
        vocab_size=262144, vocab_size_per_layer_input=262144, hidden_size_per_layer_input=256, num_attention_heads=8, head_dim=256,
        global_head_dim=512, sliding_window=512, final_logit_softcapping=30.0, rope_parameters=rope, tie_word_embeddings=True,
        max_position_embeddings=131072, layer_types=kinds * (layers // len(kinds)), **shape)


def qwen35(shape):
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    return Qwen3_5ForCausalLM, Qwen3_5TextConfig(**dict(
        vocab_size=248320, num_hidden_layers=32, num_attention_heads=16, num_key_value_heads=4, head_dim=256, linear_num_key_heads=16,
        linear_num_value_heads=32, linear_key_head_dim=128, linear_value_head_dim=128, layer_types=([DELTA] * 3 + [FULL]) * 8) | shape)


def dense(name):
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    model, config = (Qwen3ForCausalLM, Qwen3Config) if name.startswith("qwen") else (LlamaForCausalLM, LlamaConfig)
    return model, config(num_attention_heads=32, num_key_value_heads=8, head_dim=128, tie_word_embeddings=False, **DENSE[name])


def mixture(name):
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    return Qwen3MoeForCausalLM, Qwen3MoeConfig(num_attention_heads=32, head_dim=128, tie_word_embeddings=False, **MIXTURES[name])


def shape(name):
    """The class of the model, and its config."""
    if name in MIXTURES:
        return mixture(name)
    if name in GEMMA4:
        return gemma4(dict(GEMMA4[name]))
    return qwen35(QWEN35[name]) if name in QWEN35 else dense(name)


def choose_delta_nets(kind):
    """Sets the kernels of Qwen 3.5's delta nets; ends the program if they cannot run here."""
    missing = [name for name in DELTA_NETS[kind] if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"--delta {kind} needs the Python modules {', '.join(missing)}; install them or choose another --delta")
    if kind == "transformers":
        if importlib.util.find_spec("fla"):
            sys.exit("--delta transformers: transformers takes fla's kernels where fla is installed; remove it from the path first")
        return
    from fla.backends import TileLangBackend
    from fla.modules import FusedRMSNormGated
    from fla.modules.causal_conv1d import causal_conv1d
    from fla.ops.common import chunk_o
    from transformers.models.qwen3_5 import modeling_qwen3_5 as modeling

    broken = chunk_o.IS_NVIDIA_HOPPER and chunk_o.TRITON_ABOVE_3_4_0 and not chunk_o.TRITON_ABOVE_3_7_1
    if broken and not TileLangBackend.is_available():
        sys.exit("fla refuses Triton 3.4 to 3.7.0 on Hopper GPUs, as one of its backward kernels is wrong there; install tilelang, and nvcc")
    os.environ["FLA_FLASH_QLA"] = "1" if kind == "flash-qla" else "0"

    def convolution(x, weight, bias=None, activation=None, **_):
        return causal_conv1d(x.transpose(1, 2), weight, bias, activation=activation)[0].transpose(1, 2)

    # transformers takes fla's chunk_gated_delta_rule by itself; its convolution and gated norm only from other packages.
    modeling.causal_conv1d_fn = convolution
    modeling.Qwen3_5RMSNormGated = FusedRMSNormGated


def to_nf4(model):
    import bitsandbytes as bnb

    parents = [parent for layer in model.model.layers for parent in layer.modules()]
    for parent in parents:
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear:
                four = bnb.nn.Linear4bit(child.in_features, child.out_features, bias=child.bias is not None,
                                         compute_dtype=torch.bfloat16, quant_type="nf4")
                four.weight = bnb.nn.Params4bit(child.weight.data, requires_grad=False, quant_type="nf4")
                four.bias = child.bias
                setattr(parent, name, four.cuda())
    model.is_loaded_in_4bit = True
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def build(a, name, parts):
    torch.manual_seed(0)
    model_class, config = shape(name)
    config.use_cache = False
    with torch.device("cuda"):
        model = model_class(config)
    if "nf4" in parts:
        to_nf4(model)
    if "checkpointing" in parts:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    names = r".*layers\.\d+\.(self_attn|mlp|linear_attn)\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj|in_proj_\w+|out_proj)"
    adapter = LoraConfig(r=a.rank, lora_alpha=2 * a.rank, task_type="CAUSAL_LM", target_modules=names)
    model = get_peft_model(model, adapter, autocast_adapter_dtype="bf16-adapter" not in parts)
    return model.train(), config


def kernels_of(step):
    """The milliseconds of the step's longest kernels, and of all that belong to delta nets."""
    cuda = torch.profiler.ProfilerActivity.CUDA
    with torch.profiler.profile(activities=[cuda]) as profile:
        step()
    found = sorted(((e.self_device_time_total / 1e3, e.key) for e in profile.key_averages()), reverse=True)
    words = ("delta", "gdr", "chunk", "kkt", "wy", "conv1d", "l2norm", "norm_gated")
    nets = [(ms, key) for ms, key in found if any(word in key.lower() for word in words)]
    return {key[:80]: round(ms, 2) for ms, key in (found[:6] + nets[:16])}


def time_steps(model, vocabulary, batch, sequence, steps):
    """Trains on random tokens. Returns the figures of a row of the table, and a function that makes one more step."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-4, fused=True)

    def step():
        ids = torch.randint(0, vocabulary, (batch, sequence), device="cuda")
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        return time.perf_counter() - start, loss.item()

    torch.cuda.reset_peak_memory_stats()
    results = [step() for _ in range(steps + 3)]
    seconds = statistics.median(time for time, _ in results[3:])
    return {
        "tokens_per_s": round(batch * sequence / seconds), "gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "first_step_s": round(results[0][0], 1), "trainable": sum(p.numel() for p in trainable), "adapter": str(trainable[0].dtype),
        "losses": [round(results[i][1], 3) for i in (0, -1)], "torch": torch.__version__, "device": torch.cuda.get_device_name(),
    }, step


def measure(a, name, parts):
    model, config = build(a, name, parts)
    run = torch.compile(model) if "compile" in parts else model
    figures, step = time_steps(run, config.vocab_size, a.batch, a.sequence, a.steps)
    return {**figures, "attention": config._attn_implementation, "kernels_ms": kernels_of(step) if a.kernels else None}


def apply_liger():
    import liger_kernel.transformers as liger

    liger.apply_liger_kernel_to_gemma4_text()
    liger.apply_liger_kernel_to_qwen3_5()
    liger.apply_liger_kernel_to_qwen3()
    liger.apply_liger_kernel_to_qwen3_moe()
    liger.apply_liger_kernel_to_llama()


def variant(text):
    parts = [part for part in text.split("+") if part != "plain"]
    if wrong := set(parts) - set(PARTS):
        raise argparse.ArgumentTypeError(f"{text!r}: expected plain, or some of {', '.join(PARTS)} joined by +, found {', '.join(wrong)}")
    return text, parts


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", choices=MODELS, metavar="model", help=", ".join(MODELS))
    parser.add_argument("--variants", nargs="+", type=variant, default=[("plain", [])], metavar="variant",
                        help=f"plain, or some of {', '.join(PARTS)} joined by +; those with liger run last")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--steps", type=int, default=8, help="timed steps, after three others")
    parser.add_argument("--delta", choices=DELTA_NETS, default="flash-qla", help="kernels of Qwen 3.5's delta nets")
    parser.add_argument("--kernels", action="store_true", help="list the longest kernels of one more step")
    return parser.parse_args()


def main():
    a = arguments()
    if not torch.cuda.is_available():
        sys.exit("this needs a CUDA GPU")
    torch.set_default_dtype(torch.bfloat16)
    if any(name in QWEN35 for name in a.models):
        choose_delta_nets(a.delta)
    # Liger's kernels replace those of transformers for good.
    for liger in [False, True]:
        variants = [(text, parts) for text, parts in a.variants if ("liger" in parts) == liger]
        if liger and variants:
            apply_liger()
        for name in a.models:
            for text, parts in variants:
                try:
                    result = measure(a, name, parts)
                except Exception as error:
                    traceback.print_exc()
                    result = {"error": f"{type(error).__name__}: {error}".split(". ")[0].splitlines()[0]}
                shown = {"model": name, "variant": text, "batch": a.batch, "sequence": a.sequence, "rank": a.rank}
                if name in QWEN35:
                    shown["delta"] = a.delta
                print(json.dumps({**shown, **result}), flush=True)
                gc.collect()
                torch._dynamo.reset()
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
