"""Gemma 4 in PyTorch, built from a GGUF file alone: the model that every reference here is computed with.

`from_gguf(path, dtype)` gives transformers' Gemma4ForCausalLM with the dequantized weights of the file, so
PyTorch computes with exactly the numbers that the quantized file stands for. `true_float64()` removes the places
where transformers drops to float32 even in a double model.
"""
import contextlib
import os
import sys

import numpy as np
import torch
import torch.nn.functional as nnf

if os.path.isdir(os.environ.get("LLAMA_CPP", "") + "/gguf-py"):
    sys.path.insert(0, os.environ["LLAMA_CPP"] + "/gguf-py")
import gguf  # noqa: E402
import transformers.models.gemma4.modeling_gemma4 as modeling  # noqa: E402
from gguf.quants import dequantize  # noqa: E402
from transformers import Gemma4ForCausalLM, Gemma4TextConfig  # noqa: E402

SLIDING, FULL = "sliding_attention", "full_attention"

# GGUF tensor name -> transformers parameter name.
TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "per_layer_token_embd.weight": "model.embed_tokens_per_layer.weight",
    "per_layer_model_proj.weight": "model.per_layer_model_projection.weight",
    "per_layer_proj_norm.weight": "model.per_layer_projection_norm.weight",
}
BLOCK = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_norm.weight": "pre_feedforward_layernorm.weight",
    "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "inp_gate.weight": "per_layer_input_gate.weight",
    "proj.weight": "per_layer_projection.weight",
    "post_norm.weight": "post_per_layer_input_norm.weight",
    "layer_output_scale.weight": "layer_scalar",
    "ffn_gate_inp.weight": "router.proj.weight",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "ffn_gate_up_exps.weight": "experts.gate_up_proj",
    "ffn_down_exps.weight": "experts.down_proj",
    "post_ffw_norm_1.weight": "post_feedforward_layernorm_1.weight",
    "pre_ffw_norm_2.weight": "pre_feedforward_layernorm_2.weight",
    "post_ffw_norm_2.weight": "post_feedforward_layernorm_2.weight",
}
# Names that Ollama's files also use, and llama.cpp's name for the same tensor.
ALIAS = {
    "layer_scalar": "layer_output_scale.weight",
    "attn_post_norm.weight": "post_attention_norm.weight",
    "ffn_pre_norm.weight": "ffn_norm.weight",
    "ffn_post_norm.weight": "post_ffw_norm.weight",
}
OTHER_TOWERS = ("v.", "a.", "mm.")  # vision, audio, projector: Ollama keeps them in the same file


def parameter_name(tensor_name):
    """transformers' name of a GGUF tensor; None if the text model has no such parameter."""
    if not tensor_name.startswith("blk."):
        return TOP.get(tensor_name)
    _, layer, rest = tensor_name.split(".", 2)
    rest = BLOCK.get(ALIAS.get(rest, rest))
    return rest and f"model.layers.{layer}.{rest}"


def read(path):
    """-> {key: value}, {tensor name: f32 array}, without the vision and audio towers."""
    reader = gguf.GGUFReader(path)
    meta = {key: field.contents() for key, field in reader.fields.items()}
    tensors = {}
    for t in reader.tensors:
        if not t.name.startswith(OTHER_TOWERS):
            shape = tuple(int(n) for n in reversed(t.shape))
            tensors[t.name] = np.array(dequantize(t.data, t.tensor_type), dtype=np.float32).reshape(shape)
    return meta, tensors


def config(meta, tensors):
    """The transformers configuration that the file's keys and tensors stand for."""
    get = lambda key, default=None: meta.get("gemma4." + key, default)
    layers = int(get("block_count"))
    per_layer = lambda v: [int(x) for x in v] if isinstance(v, (list, tuple, np.ndarray)) else [int(v)] * layers
    sliding = [bool(x) for x in get("attention.sliding_window_pattern")]
    shared = int(get("attention.shared_kv_layers", 0))
    ffn, kv_heads = per_layer(get("feed_forward_length")), per_layer(get("attention.head_count_kv"))
    kv_sliding = next(h for h, s in zip(kv_heads, sliding) if s)
    kv_full = next(h for h, s in zip(kv_heads, sliding) if not s)
    k_eq_v = not any(f"blk.{i}.attn_v.weight" in tensors for i in range(layers - shared) if not sliding[i])
    factors = tensors["rope_freqs.weight"]
    return Gemma4TextConfig(
        vocab_size=tensors["token_embd.weight"].shape[0], vocab_size_per_layer_input=tensors["token_embd.weight"].shape[0],
        hidden_size=int(get("embedding_length")), hidden_size_per_layer_input=int(get("embedding_length_per_layer_input", 0)),
        intermediate_size=ffn[0], use_double_wide_mlp=shared > 0 and ffn[-1] == 2 * ffn[0],
        num_hidden_layers=layers, num_kv_shared_layers=shared, layer_types=[SLIDING if s else FULL for s in sliding],
        num_attention_heads=per_layer(get("attention.head_count"))[0], num_key_value_heads=kv_sliding,
        num_global_key_value_heads=kv_full if k_eq_v else None, attention_k_eq_v=k_eq_v,
        head_dim=int(get("attention.key_length_swa")), global_head_dim=int(get("attention.key_length")),
        sliding_window=int(get("attention.sliding_window")), max_position_embeddings=int(get("context_length")),
        rms_norm_eps=float(get("attention.layer_norm_rms_epsilon")),
        final_logit_softcapping=float(get("final_logit_softcapping")), tie_word_embeddings=True,
        enable_moe_block=bool(get("expert_count", 0)), num_experts=get("expert_count"), top_k_experts=get("expert_used_count"),
        moe_intermediate_size=get("expert_feed_forward_length"),
        rope_parameters={
            SLIDING: {"rope_type": "default", "rope_theta": float(get("rope.freq_base_swa"))},
            FULL: {"rope_type": "proportional", "rope_theta": float(get("rope.freq_base")),
                   "partial_rotary_factor": float((factors == 1.0).sum()) / factors.size}},
        attn_implementation="eager", experts_implementation="eager")


def from_gguf(path, dtype):
    """Gemma4ForCausalLM with the file's dequantized weights, frozen, in evaluation mode."""
    meta, tensors = read(path)
    assert meta["general.architecture"] == "gemma4", meta["general.architecture"]
    for name in [n for n in tensors if n.endswith("ffn_gate_exps.weight")]:  # transformers has the gate's rows above those of up
        gate, up = tensors.pop(name), tensors.pop(name.replace("gate", "up"))
        tensors[name.replace("gate", "gate_up")] = np.concatenate([gate, up], axis=1)
    model = Gemma4ForCausalLM(config(meta, tensors))
    want, state = model.state_dict(), {}
    for name, array in tensors.items():
        parameter = parameter_name(name)
        if parameter in want:
            assert tuple(want[parameter].shape) == array.shape, (name, array.shape, want[parameter].shape)
            state[parameter] = torch.from_numpy(array)
        else:  # rope_freqs, and the keys and values that KV-shared layers never use
            assert name == "rope_freqs.weight" or name.split(".")[2] in ("attn_k", "attn_v", "attn_k_norm"), name
    missing = set(want) - set(state) - {"lm_head.weight"}
    assert not missing, f"not in {path}: {sorted(missing)}"
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    return model.to(dtype).eval().requires_grad_(False)


@contextlib.contextmanager
def true_float64():
    """Inside: RMSNorm, the rotary tables and the attention softmax run in the model's own dtype, not in float32."""
    saved = (modeling.Gemma4RMSNorm.forward, modeling.Gemma4TextRotaryEmbedding.forward, nnf.softmax)
    softmax32 = nnf.softmax

    def norm(self, x):
        y = x * torch.pow(x.pow(2).mean(-1, keepdim=True) + self.eps, -0.5)
        return y * self.weight.to(x.dtype) if self.with_scale else y

    def rope(self, x, position_ids, layer_type):
        p = self.config.rope_parameters[layer_type]
        d = self.config.per_layer_config[layer_type].head_dim
        turning = int(p["partial_rotary_factor"] * d // 2) if p["rope_type"] == "proportional" else d // 2
        frequencies = torch.zeros(d // 2, dtype=torch.float64)
        frequencies[:turning] = float(p["rope_theta"]) ** (-torch.arange(0, 2 * turning, 2, dtype=torch.float64) / d)
        angles = position_ids[..., None].double() * frequencies
        angles = torch.cat((angles, angles), -1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    def softmax(x, dim=None, dtype=None, **rest):  # ignores "upcast to float32" where x is already wider
        return softmax32(x, dim=dim, dtype=None if x.dtype == torch.float64 else dtype, **rest)

    modeling.Gemma4RMSNorm.forward, modeling.Gemma4TextRotaryEmbedding.forward, nnf.softmax = norm, rope, softmax
    try:
        yield
    finally:
        modeling.Gemma4RMSNorm.forward, modeling.Gemma4TextRotaryEmbedding.forward, nnf.softmax = saved


def logits(model, tokens):
    """`[T, V]` after the softcap, with a gradient if the caller wants one."""
    return model(input_ids=torch.as_tensor(tokens)[None], use_cache=False).logits[0]


def router_margin(model, tokens):
    """Smallest gap between the last chosen and the first rejected expert's score: less error cannot change the choice."""
    used, gaps = model.config.top_k_experts, []
    def keep(_module, _args, scores):
        scores = scores.sort(-1, descending=True).values
        gaps.append(float((scores[..., used - 1] - scores[..., used]).min()))
    hooks = [m.register_forward_hook(keep) for n, m in model.named_modules() if n.endswith("router.proj")]
    with torch.no_grad():
        logits(model, tokens)
    [h.remove() for h in hooks]
    return min(gaps)


def relative(expected, found):
    """Norm of the difference over the norm of what is expected."""
    expected, found = expected.double(), found.double()
    return float((expected - found).norm() / expected.norm())


def lora_key(name):
    """A parameter's name as PEFT saves it: without the adapter's name `default`."""
    return name.replace(".default.weight", ".weight")


def fill_adapter(model, seed, b_std=0.04):
    """Random A and B, both nonzero, so that every gradient is alive; exact in float32, so that a file loses nothing."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            if ".lora_A." in name:
                p.copy_(torch.randn(p.shape, generator=g) * p.shape[1] ** -0.5)
            elif ".lora_B." in name:
                p.copy_(torch.randn(p.shape, generator=g) * b_std)
