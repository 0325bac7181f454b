"""A second truth, straight from the GGUF: every family's forward pass in plain float64 PyTorch, without transformers.

It works in the file's own layout (llama's permuted q, k rows with interleaved rotary pairs; qwen35's tiled V heads;
norm weights as stored), so that agreement with transformers proves the name maps and permutations of families.py.
The delta rule is the plain loop over tokens.  `wrong` names single mistakes (see MISTAKES): what each costs.

    plain.py GGUF TOKENS.txt OUT.f32 [--lora LORA.gguf]     logits [T, V] as little-endian f32
"""
import math, os, sys
import numpy as np
import torch
import torch.nn.functional as F

LLAMA = os.environ.get("LLAMA_CPP", os.path.join(os.path.dirname(os.path.abspath(__file__)), "src/llama.cpp"))
if os.path.isdir(LLAMA + "/gguf-py"):
    sys.path.insert(0, LLAMA + "/gguf-py")
import gguf  # noqa: E402
from gguf.quants import dequantize  # noqa: E402

D64 = torch.float64
NORM_ROPE = {"llama"}                    # interleaved pairs (2i, 2i+1); all others pair (i, i + n/2)


class Model:
    """Metadata and dequantized tensors (numpy f32, shape = reversed ne) of a GGUF file; a LoRA GGUF may be laid over it."""
    def __init__(self, path, lora=None):
        r = gguf.GGUFReader(path)
        self.meta = {k: f.contents() for k, f in r.fields.items()}
        self.arch = self.meta["general.architecture"]
        self.t = {t.name: np.array(dequantize(t.data, t.tensor_type), np.float32).reshape([int(n) for n in reversed(t.shape)]) for t in r.tensors}
        self.types = {t.name: t.tensor_type.name for t in r.tensors}
        self.w = {k: torch.from_numpy(v).to(D64) for k, v in self.t.items()}
        if lora:
            l = Model(lora)
            for n in [n[:-7] for n in l.t if n.endswith(".lora_a")]:
                A, B = l.w[n + ".lora_a"], l.w[n + ".lora_b"]
                self.w[n] = self.w[n] + (l.meta["adapter.lora.alpha"] / A.shape[-2]) * (B @ A)

    def key(self, k, default=None):
        return self.meta.get(f"{self.arch}.{k}", default)


def rms(x, w, eps):
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * w


def rope_angles(T, n, base, factors=None, scale=1.0):
    f = float(base) ** (-torch.arange(0, n, 2, dtype=D64) / n) * scale
    if factors is not None:
        f = f / factors
    return torch.arange(T, dtype=D64)[:, None] * f           # [T, n/2]


def rotate(x, ang, interleaved, mag=1.0):
    """x [T, H, K]: the first 2*ang.shape[1] dims turn."""
    n = 2 * ang.shape[1]
    c, s = (ang.cos() * mag)[:, None], (ang.sin() * mag)[:, None]
    y = x.clone()
    i, j = (slice(0, n, 2), slice(1, n, 2)) if interleaved else (slice(0, n // 2), slice(n // 2, n))
    y[..., i], y[..., j] = x[..., i] * c - x[..., j] * s, x[..., i] * s + x[..., j] * c
    return y


def yarn_angles(T, n, base, factor, orig, fast=32.0, slow=1.0, truncate=False):
    """YaRN -> angles, magnitude.  transformers has gpt-oss without truncation of the correction range; llama.cpp always truncates."""
    f = float(base) ** (-torch.arange(0, n, 2, dtype=D64) / n)
    dim = lambda rot: n * math.log(orig / (rot * 2 * math.pi)) / (2 * math.log(base))
    lo, hi = (math.floor(dim(fast)), math.ceil(dim(slow))) if truncate else (dim(fast), dim(slow))
    lo, hi = max(lo, 0.0), min(hi, n - 1.0)
    ramp = 1 - ((torch.arange(n // 2, dtype=D64) - lo) / max(hi - lo, 0.001)).clamp(0, 1)
    return torch.arange(T, dtype=D64)[:, None] * (f / factor * (1 - ramp) + f * ramp), 0.1 * math.log(factor) + 1.0


def attend(q, k, v, scale, window=None, sinks=None, tiled=False):
    T, H, K = q.shape
    r = H // k.shape[1]
    k, v = (z.repeat(1, r, 1) if tiled else z.repeat_interleave(r, 1) for z in (k, v))
    s = torch.einsum("thk,uhk->htu", q, k) * scale
    i, j = torch.arange(T)[:, None], torch.arange(T)[None]
    see = j <= i
    if window:
        see = see & (j > i - window)
    s = s.masked_fill(~see, -torch.inf)
    if sinks is not None:
        s = torch.cat((s, sinks[:, None, None].expand(H, T, 1)), -1)
    p = s.softmax(-1)[..., :T]
    return torch.einsum("htu,uhk->thk", p, v)


def conv_causal(x, w, wrong=(), state=None):
    """x [T, C], w [C, 4]: y[t] = sum_j w[:, j] x[t - 3 + j]; rows before the sample are zero (or `state`, the last 3)."""
    n = w.shape[1]
    if "conv_not_causal" in wrong:                            # centred: looks one token ahead
        p = torch.cat((x.new_zeros(n - 2, x.shape[1]), x, x.new_zeros(1, x.shape[1])))
    else:
        p = torch.cat((x.new_zeros(n - 1, x.shape[1]) if state is None else state, x))
    if "conv_reversed" in wrong:
        w = w.flip(1)
    return sum(p[j:j + len(x)] * w[:, j] for j in range(n)), p[len(p) - (n - 1):]


def delta_rule(q, k, v, g, beta, S=None, wrong=()):
    """q, k, v [T, H, K] (q already scaled), g, beta [T, H] -> o [T, H, K], S [H, K, V].  One token after the other."""
    T, H, K = k.shape
    S = q.new_zeros(H, K, v.shape[-1]) if S is None else S
    out = []
    for t in range(T):
        if "read_before_decay" in wrong:
            d = beta[t][:, None] * (v[t] - torch.einsum("hkv,hk->hv", S, k[t]))
            S = S * g[t].exp()[:, None, None]
        else:
            S = S * g[t].exp()[:, None, None]
            kS = torch.einsum("hkv,hk->hv", S, k[t])
            d = beta[t][:, None] * (v[t] - (0 if "no_delta" in wrong else kS))
        if "output_before_update" in wrong:
            out.append(torch.einsum("hkv,hk->hv", S, q[t]))
        S = S + k[t][:, :, None] * d[:, None]
        if "output_before_update" not in wrong:
            out.append(torch.einsum("hkv,hk->hv", S, q[t]))
    return torch.stack(out), S


def l2(x, eps=1e-6):
    return x * (x.pow(2).sum(-1, keepdim=True) + eps).rsqrt()


def forward(M, tokens, wrong=(), carry=None):
    """Logits [T, V].  carry: {} keeps each delta-net layer's conv rows and state from call to call (a packing mistake)."""
    wrong = set([wrong] if isinstance(wrong, str) else wrong)
    a, key, W, has = M.arch, M.key, M.w, M.w.__contains__
    tokens = torch.as_tensor(tokens)
    T, D, L = len(tokens), int(key("embedding_length")), int(key("block_count")) - int(key("nextn_predict_layers", 0))
    H, eps = key("attention.head_count"), float(key("attention.layer_norm_rms_epsilon"))
    Hk = key("attention.head_count_kv", H)
    K = int(key("attention.key_length", D // H if isinstance(H, int) else 0))
    if "eps" in wrong: eps *= 10
    gemma, moe, q35 = a == "gemma3", "moe" in a or a == "gpt-oss", a.startswith("qwen35")
    n_rot, base = int(key("rope.dimension_count", K)), float(key("rope.freq_base", 10000.0))
    every = int(key("attention.sliding_window_pattern", 6))
    if "rope_all_dims" in wrong: n_rot = K
    if "rope_base" in wrong: base = 10000.0 if base != 10000.0 else 1e6
    inter = (a in NORM_ROPE) != ("rope_other_pairs" in wrong)
    win, scale_q = key("attention.sliding_window"), float(key("attention.scale", 0) or K ** -0.5)
    if a == "gemma3" and L == 62: scale_q = (D // H) ** -0.5
    if "attention_scale_1" in wrong: scale_q = 1.0
    if "window_minus_1" in wrong: win -= 1
    if "window_plus_1" in wrong: win += 1
    factors = W.get("rope_freqs.weight") if "no_rope_freqs" not in wrong else None
    scaling = float(key("rope.scaling.factor", 1.0)) if key("rope.scaling.type") == "linear" else 1.0
    if "no_linear_scaling" in wrong: scaling = 1.0
    act = F.silu
    gelu = lambda x: F.gelu(x, approximate="tanh")
    if gemma: act = gelu
    if "gelu_for_silu" in wrong: act = gelu
    if "silu_for_gelu" in wrong: act = F.silu
    if "erf_gelu" in wrong: act = F.gelu
    if "gelu_f16_table" in wrong: act = lambda x: gelu(x.half().to(D64)).half().to(D64)      # what ggml's CPU backend computes
    bias = lambda n: W[n + ".bias"] if has(n + ".bias") and "no_bias" not in wrong else 0.0
    lin = lambda n, x: x @ W[n + ".weight"].T + bias(n)
    nw = lambda n: W[n + ".weight"] + (1.0 if "norm_plus_1" in wrong else 0.0)

    ang = rope_angles(T, n_rot, base, factors, 1 / scaling)
    ang_swa, mag = ang, 1.0
    if gemma:
        b = float(key("rope.freq_base_swa", 10000.0))
        if "windows_use_global_base" in wrong: b = base
        if "bases_swapped" in wrong: ang = rope_angles(T, n_rot, b, factors, 1 / scaling); b = base
        ang_swa = rope_angles(T, n_rot, b, None, 1 / scaling if "scaling_in_windows" in wrong else 1.0)
    if key("rope.scaling.type") == "yarn" and "no_yarn" not in wrong:
        ang, mag = yarn_angles(T, n_rot, base, float(key("rope.scaling.factor")), float(key("rope.scaling.original_context_length")),
                               float(key("rope.scaling.yarn_beta_fast", 32.0)), float(key("rope.scaling.yarn_beta_slow", 1.0)), "yarn_truncated" in wrong)
        ang_swa = ang
        if "no_yarn_magnitude" in wrong: mag = 1.0
    if "positions_from_1" in wrong:
        ang, ang_swa = ang + ang[1], ang_swa + ang_swa[1]

    def is_window(i):
        if a == "gpt-oss":
            return i % 2 == (1 if "window_on_odd_layers" in wrong else 0)
        return gemma and "no_window" not in wrong and (i % 6 != 0 if "full_layers_first" in wrong else i % every != every - 1)

    def attention(i, x):
        p = f"blk.{i}."
        q, k, v = (lin(p + f"attn_{z}", x) for z in "qkv")
        gate = None
        if q35:                                               # per head: K query rows, then K gate rows
            if "gate_after_all_queries" in wrong:
                q, gate = q[:, :H * K].view(T, H, K), q[:, H * K:].view(T, H, K)
            else:
                q, gate = q.view(T, H, 2, K).unbind(2)
        q, k, v = q.reshape(T, H, K), k.view(T, -1, K), v.view(T, -1, K)
        if has(p + "attn_q_norm.weight") and "no_qk_norm" not in wrong:
            if "no_q_norm" not in wrong: q = rms(q, nw(p + "attn_q_norm"), eps)
            k = rms(k, nw(p + "attn_k_norm"), eps)
        if "v_norm" in wrong: v = rms(v, 1.0, eps)
        sw = is_window(i)
        if "no_rope" not in wrong:
            q, k = (rotate(z, ang_swa if sw else ang, inter, mag) for z in (q, k))
        if has(p + "attn_q_norm.weight") and "qk_norm_after_rope" in wrong:   # norms do commute with a rotation, their weights do not
            raise NotImplementedError
        o = attend(q, k, v, scale_q, win if sw and "no_window" not in wrong else None,
                   W[p + "attn_sinks.weight"] if has(p + "attn_sinks.weight") and "no_sinks" not in wrong else None, "groups_tiled" in wrong)
        if gate is not None and "no_output_gate" not in wrong:
            o = o * (F.silu(gate) if "output_gate_silu" in wrong else gate.sigmoid())
        return lin(p + "attn_output", o.reshape(T, -1))

    def delta_net(i, x):
        p = f"blk.{i}."
        hk, hv, inner = int(key("ssm.group_count")), int(key("ssm.time_step_rank")), int(key("ssm.inner_size"))
        d = inner // hv
        old = (carry or {}).get(i, (None, None))
        y = lin(p + "attn_qkv", x)
        y, conv_state = conv_causal(y, W[p + "ssm_conv1d.weight"], wrong, None if "reset_conv" in wrong else old[0])
        if "no_silu_after_conv" not in wrong: y = F.silu(y)
        q, k, v = y[:, :hk * d].view(T, hk, d), y[:, hk * d:2 * hk * d].view(T, hk, d), y[:, 2 * hk * d:].view(T, hv, d)
        if "no_l2norm" not in wrong:
            e = eps if "l2_eps" not in wrong else 1e-3
            q, k = l2(q, e), l2(k, e)
        if "no_q_scale" not in wrong: q = q * d ** -0.5
        rep = (lambda z: z.repeat_interleave(hv // hk, 1)) if "v_heads_grouped" in wrong else (lambda z: z.repeat(1, hv // hk, 1))
        q, k = rep(q), rep(k)                                 # tiled: V head h reads K head h mod hk
        dt = 0.0 if "no_dt_bias" in wrong else W[p + "ssm_dt.bias"]
        A = W[p + "ssm_a"]
        g = A * F.softplus(lin(p + "ssm_alpha", x) + dt)
        if "decay_sign" in wrong: g = -g
        if "a_not_exp" in wrong: g = -torch.log(-A) * F.softplus(lin(p + "ssm_alpha", x) + dt)
        if "no_decay" in wrong: g = g * 0
        beta = lin(p + "ssm_beta", x)
        if "beta_no_sigmoid" not in wrong: beta = beta.sigmoid()
        if "alpha_beta_swapped" in wrong:
            g = A * F.softplus(lin(p + "ssm_beta", x) + dt); beta = lin(p + "ssm_alpha", x).sigmoid()
        o, S = delta_rule(q, k, v, g, beta, None if "reset_state" in wrong else old[1], wrong)
        if carry is not None: carry[i] = (conv_state, S)
        z = lin(p + "attn_gate", x).view(T, hv, d)
        zg = z.sigmoid() if "z_sigmoid" in wrong else F.silu(z)
        w = W[p + "ssm_norm.weight"] + (1.0 if "ssm_norm_plus_1" in wrong else 0.0)
        if "no_ssm_norm" in wrong: o = o * zg
        elif "gate_before_norm" in wrong: o = rms(o * zg, w, eps)
        elif "no_z_gate" in wrong: o = rms(o, w, eps)
        else: o = rms(o, w, eps) * zg
        return lin(p + "ssm_out", o.reshape(T, -1))

    def experts(p, x):
        n_used = int(key("expert_used_count"))
        s = lin(p + "ffn_gate_inp", x)
        if a == "gpt-oss" and "softmax_over_all" not in wrong:
            top, idx = s.topk(n_used, -1)
            wgt = top.softmax(-1)
        else:
            top, idx = s.softmax(-1).topk(n_used, -1)
            wgt = top if "router_no_renorm" in wrong else top / top.sum(-1, keepdim=True)
        y = torch.zeros_like(x)
        for e in range(W[p + "ffn_gate_exps.weight"].shape[0]):
            tok, slot = (idx == e).nonzero(as_tuple=True)
            if not len(tok): continue
            b = lambda n: bias(n)[e] if has(n + ".bias") and "no_bias" not in wrong else 0.0
            gt, up = (x[tok] @ W[p + f"ffn_{n}_exps.weight"][e].T + b(p + f"ffn_{n}_exps") for n in ("gate", "up"))
            if "gate_up_swapped" in wrong: gt, up = up, gt
            if a == "gpt-oss" and "plain_swiglu" not in wrong:
                if "no_clamp" not in wrong: gt, up = gt.clamp(max=7.0), up.clamp(-7.0, 7.0)
                h = gt * (1.702 * gt).sigmoid() * (up + (0.0 if "no_up_plus_1" in wrong else 1.0))
            else:
                h = act(gt) * up
            y = y.index_add(0, tok, wgt[tok, slot][:, None] * (h @ W[p + "ffn_down_exps.weight"][e].T + b(p + "ffn_down_exps")))
        if has(p + "ffn_gate_shexp.weight") and "no_shared_expert" not in wrong:
            sh = lin(p + "ffn_down_shexp", act(lin(p + "ffn_gate_shexp", x)) * lin(p + "ffn_up_shexp", x))
            gw = W[p + "ffn_gate_inp_shexp.weight"].reshape(1, -1)
            y = y + (sh if "no_shared_gate" in wrong else (x @ gw.T).sigmoid() * sh)
        return y

    def ffn(i, x):
        p = f"blk.{i}."
        if has(p + "ffn_gate_inp.weight"):
            return experts(p, x)
        gt, up = lin(p + "ffn_gate", x), lin(p + "ffn_up", x)
        if "gate_up_swapped" in wrong: gt, up = up, gt
        return lin(p + "ffn_down", act(gt) * up)

    h = W["token_embd.weight"][tokens]
    if gemma and "no_embedding_scale" not in wrong:
        s = torch.tensor(D ** 0.5, dtype=D64)
        h = h * (s.bfloat16().to(D64) if "embedding_scale_bf16" in wrong else s)
    if "embedding_scale" in wrong: h = h * D ** 0.5
    pre2 = "ffn_norm" if has("blk.0.ffn_norm.weight") else "post_attention_norm"
    for i in range(L):
        p = f"blk.{i}."
        x = rms(h, nw(p + "attn_norm"), eps)
        x = delta_net(i, x) if has(p + "ssm_a") else attention(i, x)
        if gemma and "no_post_norms" not in wrong: x = rms(x, nw(p + "post_attention_norm"), eps)
        h = h + x
        x = ffn(i, rms(h, nw(p + pre2), eps))
        if gemma and "no_post_norms" not in wrong: x = rms(x, nw(p + "post_ffw_norm"), eps)
        h = h + x
    h = rms(h, nw("output_norm"), eps)
    head = W["output.weight"] if has("output.weight") and "tied_head" not in wrong else W["token_embd.weight"]
    z = h @ head.T
    if key("final_logit_softcapping") and "no_softcap" not in wrong:
        c = float(key("final_logit_softcapping")); z = c * (z / c).tanh()
    return z


MISTAKES = {
    "all": ["rope_other_pairs", "rope_base", "no_rope", "attention_scale_1", "eps", "norm_plus_1", "groups_tiled", "gate_up_swapped", "embedding_scale", "positions_from_1"],
    "qwen3": ["no_qk_norm", "no_q_norm", "gelu_for_silu"],
    "qwen3moe": ["no_qk_norm", "gelu_for_silu", "router_no_renorm"],
    "qwen2": ["no_bias", "gelu_for_silu", "tied_head"],
    "llama": ["no_rope_freqs", "gelu_for_silu", "tied_head"],
    "gemma3": ["no_qk_norm", "v_norm", "silu_for_gelu", "erf_gelu", "gelu_f16_table", "window_minus_1", "window_plus_1", "no_window", "full_layers_first", "windows_use_global_base",
               "bases_swapped", "no_linear_scaling", "scaling_in_windows", "no_post_norms", "no_embedding_scale", "embedding_scale_bf16"],
    "qwen35": ["no_qk_norm", "gelu_for_silu", "no_output_gate", "output_gate_silu", "gate_after_all_queries", "rope_all_dims", "no_l2norm", "l2_eps", "no_q_scale",
               "v_heads_grouped", "no_dt_bias", "decay_sign", "no_decay", "a_not_exp", "beta_no_sigmoid", "alpha_beta_swapped", "conv_not_causal", "conv_reversed",
               "no_silu_after_conv", "no_delta", "read_before_decay", "output_before_update", "z_sigmoid", "no_z_gate", "gate_before_norm", "no_ssm_norm", "ssm_norm_plus_1"],
    "gpt-oss": ["no_bias", "no_sinks", "window_on_odd_layers", "no_window", "window_minus_1", "no_yarn", "no_yarn_magnitude", "yarn_truncated", "softmax_over_all", "no_clamp", "no_up_plus_1", "plain_swiglu"],
}
MISTAKES["qwen35moe"] = MISTAKES["qwen35"] + ["router_no_renorm", "no_shared_expert", "no_shared_gate"]

if __name__ == "__main__":
    a = sys.argv[1:]
    lora = a[a.index("--lora") + 1] if "--lora" in a else None
    torch.set_grad_enabled(False)
    forward(Model(a[0], lora), [int(x) for x in open(a[1]).read().split()]).float().numpy().tofile(a[2])
