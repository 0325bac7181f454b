"""The model families beside Gemma 4: GGUF <-> transformers, in true float64.

`from_gguf(path, dtype)` builds transformers' model of the family from the file alone: its keys, and its tensors dequantized,
un-permuted and un-shifted (`TOP`, `BLOCK`, `to_hf`).  `true_float64()` keeps transformers from dropping to float32 in a double
model, and makes the delta rule the plain loop over tokens.  `lora_to_gguf` carries a PEFT adapter to llama.cpp's layout.
"""
import contextlib, os, sys
import numpy as np
import torch
import torch.nn.functional as nnf
from torch.overrides import TorchFunctionMode
import plain
from plain import gguf, dequantize
import transformers as tf

D64 = torch.float64
CLASSES = {"qwen2": ("Qwen2Config", "Qwen2ForCausalLM"), "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"), "qwen3moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM"),
           "llama": ("LlamaConfig", "LlamaForCausalLM"), "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
           "qwen35": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM"), "qwen35moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM"),
           "gpt-oss": ("GptOssConfig", "GptOssForCausalLM")}

# ---------------------------------------------------------------- names: GGUF -> transformers (without "model.layers.N.")
TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}
ATTENTION = {f"attn_{g}.{w}": f"self_attn.{h}_proj.{w}" for g, h in (("q", "q"), ("k", "k"), ("v", "v"), ("output", "o")) for w in ("weight", "bias")}
ATTENTION |= {"attn_norm.weight": "input_layernorm.weight", "attn_q_norm.weight": "self_attn.q_norm.weight", "attn_k_norm.weight": "self_attn.k_norm.weight",
              "attn_sinks.weight": "self_attn.sinks"}
MLP = {f"ffn_{p}.weight": f"mlp.{p}_proj.weight" for p in ("gate", "up", "down")}
EXPERTS = {"ffn_gate_inp.weight": "mlp.gate.weight", "ffn_gate_up_exps.weight": "mlp.experts.gate_up_proj", "ffn_down_exps.weight": "mlp.experts.down_proj"}
SHARED = {f"ffn_{p}_shexp.weight": f"mlp.shared_expert.{p}_proj.weight" for p in ("gate", "up", "down")} | {"ffn_gate_inp_shexp.weight": "mlp.shared_expert_gate.weight"}
DELTA = {"attn_qkv.weight": "linear_attn.in_proj_qkv.weight", "attn_gate.weight": "linear_attn.in_proj_z.weight", "ssm_alpha.weight": "linear_attn.in_proj_a.weight",
         "ssm_beta.weight": "linear_attn.in_proj_b.weight", "ssm_conv1d.weight": "linear_attn.conv1d.weight", "ssm_dt.bias": "linear_attn.dt_bias",
         "ssm_a": "linear_attn.A_log", "ssm_norm.weight": "linear_attn.norm.weight", "ssm_out.weight": "linear_attn.out_proj.weight"}
GPTOSS = {"ffn_gate_inp.weight": "mlp.router.weight", "ffn_gate_inp.bias": "mlp.router.bias", "ffn_gate_up_exps.weight": "mlp.experts.gate_up_proj",
          "ffn_gate_up_exps.bias": "mlp.experts.gate_up_proj_bias", "ffn_down_exps.weight": "mlp.experts.down_proj", "ffn_down_exps.bias": "mlp.experts.down_proj_bias"}
PRE = ATTENTION | MLP | {"ffn_norm.weight": "post_attention_layernorm.weight"}
POST = ATTENTION | {"post_attention_norm.weight": "post_attention_layernorm.weight"}
BLOCK = {"qwen2": PRE, "qwen3": PRE, "llama": PRE, "qwen3moe": ATTENTION | EXPERTS | {"ffn_norm.weight": "post_attention_layernorm.weight"},
         "gemma3": POST | MLP | {"ffn_norm.weight": "pre_feedforward_layernorm.weight", "post_ffw_norm.weight": "post_feedforward_layernorm.weight"},
         "qwen35": POST | MLP | DELTA, "qwen35moe": POST | EXPERTS | SHARED | DELTA, "gpt-oss": POST | GPTOSS}
ZERO_CENTRED = {"gemma3", "qwen35", "qwen35moe"}     # HF stores w, GGUF stores 1 + w (not ssm_norm)


def block_map(arch):
    return BLOCK[arch]


def hf_name(arch, name):
    if name in TOP: return TOP[name]
    _, n, rest = name.split(".", 2)
    return f"model.layers.{n}.{block_map(arch)[rest]}"


def gguf_name(arch, hf):
    inv = {v: k for k, v in TOP.items()}
    if hf in inv: return inv[hf]
    _, _, n, rest = hf.split(".", 3)
    return f"blk.{n}.{ {v: k for k, v in block_map(arch).items()}[rest] }"


# ---------------------------------------------------------------- permutations: row r of the GGUF is row ROWS[r] of transformers
def rows_rotary(heads, size):
    """llama: GGUF puts each head's rotary pairs side by side: (0, K/2, 1, K/2 + 1, ...)."""
    return np.arange(heads * size).reshape(heads, 2, size // 2).swapaxes(1, 2).reshape(-1)


def rows_tiled(hk, hv, d):
    """qwen35: V head h of the GGUF (which reads K head h mod Hk) is V head (h mod Hk) * (Hv/Hk) + h // Hk of transformers."""
    return np.arange(hv * d).reshape(hk, hv // hk, d).swapaxes(0, 1).reshape(-1)


def permutation(M, name):
    """-> (axis, index) with gguf = np.take(hf, index, axis) for a tensor's rows (0) or columns (1); None if the order is the same."""
    rest, key = name.split(".", 2)[-1] if name.startswith("blk.") else name, M.key
    if M.arch == "llama" and rest.split(".")[0] in ("attn_q", "attn_k"):
        heads = int(key("attention.head_count") if rest.startswith("attn_q") else key("attention.head_count_kv"))
        return 0, rows_rotary(heads, M.t[name].shape[0] // heads)
    if M.arch.startswith("qwen35"):
        hk, hv = int(key("ssm.group_count")), int(key("ssm.time_step_rank"))
        d = int(key("ssm.inner_size")) // hv
        if hk == hv: return None
        if rest in ("attn_qkv.weight", "ssm_conv1d.weight"):
            if f"{name.rsplit('.', 2)[0]}.ssm_a" not in M.t: return None
            return 0, np.concatenate((np.arange(2 * hk * d), 2 * hk * d + rows_tiled(hk, hv, d)))
        if rest == "attn_gate.weight": return 0, rows_tiled(hk, hv, d)
        if rest in ("ssm_alpha.weight", "ssm_beta.weight", "ssm_dt.bias", "ssm_a"): return 0, rows_tiled(hk, hv, 1)
        if rest == "ssm_out.weight": return 1, rows_tiled(hk, hv, d)
    return None


def to_hf(M, name, a):
    """A GGUF tensor's numbers (f64 array) as transformers holds them."""
    p = permutation(M, name)
    if p is not None:
        a = np.take(a, np.argsort(p[1]), p[0])
    rest = name.split(".", 2)[-1] if name.startswith("blk.") else name
    if M.arch in ZERO_CENTRED and "norm" in rest and rest != "ssm_norm.weight": a = a - 1.0
    if rest == "ssm_a": a = np.log(-a)
    if rest == "ssm_conv1d.weight": a = a[:, None]
    if rest == "ffn_gate_inp_shexp.weight": a = a.reshape(1, -1)
    return a


# ---------------------------------------------------------------- the model
def config_from_gguf(M):
    k, a, t = M.key, M.arch, M.t
    D, L, H = int(k("embedding_length")), int(k("block_count")), int(k("attention.head_count"))
    K = int(k("attention.key_length", D // H))
    c = dict(vocab_size=t["token_embd.weight"].shape[0], hidden_size=D, num_hidden_layers=L, num_attention_heads=H, num_key_value_heads=int(k("attention.head_count_kv")),
             head_dim=K, rms_norm_eps=float(k("attention.layer_norm_rms_epsilon")), max_position_embeddings=int(k("context_length")),
             tie_word_embeddings="output.weight" not in t, attn_implementation="eager", experts_implementation="eager",
             pad_token_id=None, bos_token_id=None, eos_token_id=None)
    rope = {"rope_type": "default", "rope_theta": float(k("rope.freq_base"))}
    if k("feed_forward_length"): c["intermediate_size"] = int(k("feed_forward_length"))
    if k("expert_count"):
        c |= {"num_experts": int(k("expert_count")), "num_local_experts": int(k("expert_count")), "num_experts_per_tok": int(k("expert_used_count")),
              "moe_intermediate_size": int(k("expert_feed_forward_length")), "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
    if k("expert_shared_feed_forward_length"): c["shared_expert_intermediate_size"] = int(k("expert_shared_feed_forward_length"))
    if a == "gemma3":
        full = dict(rope)
        if k("rope.scaling.type") == "linear": full |= {"rope_type": "linear", "factor": float(k("rope.scaling.factor"))}
        rope = {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": float(k("rope.freq_base_swa", 10000.0))}}
        every = int(k("attention.sliding_window_pattern", 6))
        c |= {"sliding_window": int(k("attention.sliding_window")), "query_pre_attn_scalar": K, "hidden_activation": "gelu_pytorch_tanh",
              "layer_types": ["full_attention" if i % every == every - 1 else "sliding_attention" for i in range(L)]}
    if a.startswith("qwen35"):
        hv = int(k("ssm.time_step_rank"))
        rope |= {"partial_rotary_factor": int(k("rope.dimension_count")) / K, "mrope_section": [int(x) for x in k("rope.dimension_sections")[:3]], "mrope_interleaved": True}
        c |= {"linear_conv_kernel_dim": int(k("ssm.conv_kernel")), "linear_num_key_heads": int(k("ssm.group_count")), "linear_num_value_heads": hv,
              "linear_key_head_dim": int(k("ssm.state_size")), "linear_value_head_dim": int(k("ssm.inner_size")) // hv,
              "layer_types": ["linear_attention" if f"blk.{i}.ssm_a" in t else "full_attention" for i in range(L)]}
    if a == "gpt-oss":
        rope |= {"rope_type": "yarn", "factor": float(k("rope.scaling.factor")), "original_max_position_embeddings": int(k("rope.scaling.original_context_length")),
                 "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
        c |= {"intermediate_size": int(k("expert_feed_forward_length")), "sliding_window": int(k("attention.sliding_window")),
              "layer_types": ["sliding_attention" if i % 2 == 0 else "full_attention" for i in range(L)]}
    return getattr(tf, CLASSES[a][0])(**c, rope_parameters=rope)


def set_rope(model, M):
    """The rotary frequencies in float64 (transformers computes them in float32), with the file's own rope_freqs divisors."""
    r, k = model.model.rotary_emb, M.key
    K = model.config.head_dim
    n, base = int(k("rope.dimension_count", K)), float(k("rope.freq_base"))
    f = lambda b, s=1.0: b ** (-torch.arange(0, n, 2, dtype=D64) / n) * s
    dt = next(model.parameters()).dtype
    if M.arch == "gemma3":
        s = 1 / float(k("rope.scaling.factor", 1.0)) if k("rope.scaling.type") == "linear" else 1.0
        r.full_attention_inv_freq = f(base, s).to(dt)
        r.sliding_attention_inv_freq = f(float(k("rope.freq_base_swa", 10000.0))).to(dt)
    elif M.arch == "gpt-oss":
        a, mag = plain.yarn_angles(2, n, base, float(k("rope.scaling.factor")), float(k("rope.scaling.original_context_length")))
        assert abs(float((a[1].float() - r.inv_freq.float()).abs().max())) < 1e-6, "YaRN differs"
        r.inv_freq = a[1].to(dt)
    else:
        inv = f(base)
        if "rope_freqs.weight" in M.w: inv = inv / M.w["rope_freqs.weight"]
        r.inv_freq = inv.to(dt)


def from_gguf(path, dtype=D64):
    M = plain.Model(path)
    cfg = config_from_gguf(M)
    torch.manual_seed(0)
    model = getattr(tf, CLASSES[M.arch][1])(cfg).to(dtype)
    want, sd = model.state_dict(), {}
    t = {n: a.astype(np.float64) for n, a in M.t.items()}
    for n in [n for n in t if n.endswith((".ffn_gate_exps.weight", ".ffn_gate_exps.bias"))]:   # transformers holds gate over up in one
        g, u = t.pop(n), t.pop(n.replace("gate_exps", "up_exps"))
        t[n.replace("gate_exps", "gate_up_exps")] = np.stack((g, u), 2).reshape(g.shape[0], -1, *g.shape[2:]) if M.arch == "gpt-oss" else np.concatenate((g, u), 1)
    if M.arch == "gpt-oss":                                   # HF's experts are [in, out]
        t = {n: np.ascontiguousarray(a.swapaxes(1, 2)) if n.endswith("_exps.weight") else a for n, a in t.items()}
    for n, a in t.items():
        if n == "rope_freqs.weight": continue
        h = hf_name(M.arch, n)
        a = to_hf(M, n, a)
        assert tuple(want[h].shape) == a.shape, (n, h, a.shape, tuple(want[h].shape))
        sd[h] = torch.from_numpy(np.ascontiguousarray(a)).to(dtype)
    missing = set(want) - set(sd) - ({"lm_head.weight"} if cfg.tie_word_embeddings else set())
    assert not missing, f"not in {path}: {sorted(missing)}"
    model.load_state_dict(sd, strict=False)
    model.tie_weights()
    if M.arch == "gemma3":                                    # sqrt(D) rounded by transformers to the weight dtype: exact here
        model.model.embed_tokens.embed_scale = torch.tensor(cfg.hidden_size ** 0.5, dtype=dtype)
    set_rope(model, M)
    model.eval().requires_grad_(False)
    model.gguf = M
    return model


class KeepDouble(TorchFunctionMode):
    """Casts of double to float32 do nothing, and integers become double where float32 was asked for; any float32 result is noted."""
    seen = None

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", str(func))
        x = args[0] if args else None
        if isinstance(x, torch.Tensor):
            wide = x.dtype in (D64, torch.int64)
            if name == "float" and wide: return x.to(D64)
            if name in ("to", "type") and x.dtype == D64:
                args = tuple(D64 if a is torch.float32 else a for a in args)
            if kwargs.get("dtype") is torch.float32 and x.dtype == D64: kwargs["dtype"] = D64
        out = func(*args, **kwargs)
        if isinstance(out, torch.Tensor) and out.dtype == torch.float32 and name not in ("__get__",) and self.seen is not None:
            self.seen.add(name)
        return out


def recurrent_delta_rule(query, key, value, g, beta, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False, **kw):
    """transformers' signature around plain.delta_rule: token by token, batch of one, all in the inputs' precision."""
    assert query.shape[0] == 1 and initial_state is None and not output_final_state and use_qk_l2norm_in_kernel
    q, k, v, g, b = (x[0] for x in (query, key, value, g, beta))
    r = v.shape[1] // k.shape[1]
    q, k = (plain.l2(x).repeat_interleave(r, 1) for x in (q, k))
    o, _ = plain.delta_rule(q * q.shape[-1] ** -0.5, k, v, g, b)
    return o[None], None


@contextlib.contextmanager
def true_float64(recurrent=True, seen=None):
    """Inside, a double model computes in double throughout.  recurrent=False leaves transformers' chunked delta rule in place."""
    import transformers.models.qwen3_5.modeling_qwen3_5 as a
    import transformers.models.qwen3_5_moe.modeling_qwen3_5_moe as b
    saved = [(m, m.torch_chunk_gated_delta_rule) for m in (a, b)]
    if recurrent:
        for m, _ in saved: m.torch_chunk_gated_delta_rule = recurrent_delta_rule
    mode = KeepDouble()
    mode.seen = seen
    try:
        with mode:
            yield
    finally:
        for m, f in saved: m.torch_chunk_gated_delta_rule = f


def logits(model, tokens):
    return model(input_ids=torch.as_tensor(tokens)[None], use_cache=False).logits[0]


def router_margin(model, tokens):
    """Smallest gap between the last chosen and the first rejected expert's score (logit)."""
    used, gaps = model.config.num_experts_per_tok, []
    def keep(_m, _a, out):
        s = out[0].sort(-1, descending=True).values
        gaps.append(float((s[..., used - 1] - s[..., used]).min()))
    hooks = [m.register_forward_hook(keep) for n, m in model.named_modules() if type(m).__name__.endswith("TopKRouter")]
    with torch.no_grad():
        logits(model, tokens)
    [h.remove() for h in hooks]
    return min(gaps)


# ---------------------------------------------------------------- adapters
def lora_to_gguf(M, weights):
    """{PEFT key: tensor} -> {GGUF tensor name: (A, B)} in llama.cpp's layout: [r, in], [out, r]; experts [E, r, in], [E, out, r]."""
    pairs, out = {}, {}
    for k, v in weights.items():
        mod, side = k.removeprefix("base_model.model.").removesuffix(".weight").rsplit(".lora_", 1)
        pairs.setdefault(mod, {})[side] = v.float().numpy()
    for mod, p in pairs.items():
        A, B = p["A"], p["B"]
        if mod.endswith((".experts", ".experts.base_layer")):
            layer = mod.split(".")[2]
            E = int(M.key("expert_count"))
            r = A.shape[0] // E
            A, B = A.reshape(E, r, -1), B.reshape(B.shape[0], r, E).transpose(2, 0, 1)
            if mod.endswith("base_layer"):
                f = B.shape[1] // 2
                for name, rows in (("gate", B[:, ::2]), ("up", B[:, 1::2])) if M.arch == "gpt-oss" else (("gate", B[:, :f]), ("up", B[:, f:])): out[f"blk.{layer}.ffn_{name}_exps.weight"] = (A, rows)
            else:
                out[f"blk.{layer}.ffn_down_exps.weight"] = (A, B)
            continue
        name = gguf_name(M.arch, mod + ".weight")
        perm = permutation(M, name)
        if perm is not None:
            if perm[0] == 0: B = B[perm[1]]
            else: A = A[:, perm[1]]
        out[name] = (A, B)
    return out


def write_lora(path, M, pairs, alpha):
    w = gguf.GGUFWriter(path, M.arch)
    w.add_type("adapter")
    w.add_string("adapter.type", "lora")
    w.add_float32("adapter.lora.alpha", float(alpha))
    for n, (a, b) in pairs.items():
        w.add_tensor(n + ".lora_a", np.ascontiguousarray(a, np.float32))
        w.add_tensor(n + ".lora_b", np.ascontiguousarray(b, np.float32))
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()


# ---------------------------------------------------------------- comparing
def relative(expected, found):
    e, f = torch.as_tensor(expected).double(), torch.as_tensor(found).double()
    return float((e - f).norm() / e.norm())
