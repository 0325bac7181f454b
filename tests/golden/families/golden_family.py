"""References for one GGUF of any family here: logits, loss, every LoRA gradient, AdamW losses, in true float64 through PEFT.

    golden_family.py MODEL.gguf FOLDER [--rank 4 --alpha 8 --seed 7 --tokens 96 --second 40 --hidden --gguf-lora --no-experts --tries N]

writes FOLDER/model.gguf (a copy), golden.safetensors, adapter/, tokens.txt [and lora-f32.gguf], in the format of tests/golden;
prints how far float32 PyTorch is, and how far plain.py (which works in the GGUF's own layout) is.
"""
import argparse, json, os, shutil
import torch
import torch.nn.functional as nnf
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from families import D64, from_gguf, logits, lora_to_gguf, plain, relative, router_margin, true_float64, write_lora

MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj", "shared_expert_gate"]
PARAMETERS = ["mlp.gate.weight", "mlp.router.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
ADAMW = dict(lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
key = lambda n: n.replace(".default.weight", ".weight")


def tokens_and_mask(M, n, seed, prompt):
    """Ordinary ids (no special, no unused ones), BOS first where the file says so; mask 0 on the prompt, 1 on what is trained."""
    g = torch.Generator().manual_seed(seed)
    kinds = M.meta["tokenizer.ggml.token_type"]
    plain_ids = torch.tensor([i for i, k in enumerate(kinds) if k == 1])
    t = plain_ids[torch.randint(len(plain_ids), (n,), generator=g)]
    t[n // 2: n // 2 + 8] = t[3:11].clone()         # a repeated span, so that attention has something to find
    bos = M.meta.get("tokenizer.ggml.bos_token_id")
    if bos is not None and (M.arch in ("llama", "gemma3")): t[0] = int(bos)
    m = torch.ones(n, dtype=torch.long)
    m[:prompt] = 0
    return t, m


def loss_sum(z, tokens, mask):
    """Cross entropy where position t predicts tokens[t+1], counted where mask[t+1] is 1: (sum, count)."""
    targets, counted = tokens[1:], mask[1:].bool()
    return nnf.cross_entropy(z[:-1][counted], targets[counted], reduction="sum"), int(counted.sum())


def mean_loss(m, sequences):
    parts = [loss_sum(logits(m, t), t, k) for t, k in sequences]
    return sum(s for s, _ in parts) / sum(n for _, n in parts)


def attach(model, rank, alpha, seed, experts=True, b_std=0.04):
    names = [n for n, _ in model.named_modules()]
    modules = [m for m in MODULES if any(n.endswith("." + m) for n in names)]
    params = [p for p in PARAMETERS if any(n.endswith(p) for n, _ in model.named_parameters())] if experts else []
    lora = LoraConfig(r=rank, lora_alpha=alpha, target_modules=modules, **({"target_parameters": params} if params else {}), lora_dropout=0.0, bias="none", task_type="CAUSAL_LM")
    m = get_peft_model(model, lora, autocast_adapter_dtype=False)
    for n, p in m.named_parameters():
        p.requires_grad_("lora_" in n)
        if "lora_" in n: p.data = p.data.to(model.dtype)
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():                            # exact in float32, so that a file loses nothing
        for n, p in sorted(m.named_parameters()):
            if ".lora_A." in n: p.copy_(torch.randn(p.shape, generator=g) * p.shape[1] ** -0.5)
            elif ".lora_B." in n: p.copy_(torch.randn(p.shape, generator=g) * b_std)
    return m.eval()


def gradients(m):
    return {key(n): p.grad.clone() for n, p in m.named_parameters() if p.grad is not None}


def forward_backward(m, tokens, mask):
    hidden, layers = [], m.get_base_model().model.layers
    first = lambda o: (o[0] if isinstance(o, tuple) else o).detach()[0]
    hooks = [layers[0].register_forward_pre_hook(lambda _m, a: hidden.append(a[0].detach()[0]))]
    hooks += [l.register_forward_hook(lambda _m, _a, o: hidden.append(first(o))) for l in layers]
    m.zero_grad()
    z = logits(m, tokens)
    [h.remove() for h in hooks]
    total, count = loss_sum(z, tokens, mask)
    (total / count).backward()
    return z.detach(), (total / count).detach(), gradients(m), hidden


def adamw_losses(m, tokens, mask, steps=10):
    opt, losses = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], **ADAMW), []
    for i in range(steps + 1):
        loss = mean_loss(m, [(tokens, mask)])
        losses.append(loss.detach())
        if i < steps:
            opt.zero_grad(); loss.backward(); opt.step()
    return torch.stack(losses)


def finite_difference(m, tokens, mask, grads, h=1e-5, k=8):
    P = {key(n): p for n, p in m.named_parameters()}
    g, names, worst = torch.Generator().manual_seed(3), sorted(grads), 0.0
    for j in torch.randperm(len(names), generator=g)[:k].tolist():
        flat = P[names[j]].data.view(-1)
        i, two = int(torch.randint(flat.numel(), (1,), generator=g)), 0.0
        old = flat[i].item()
        for s in (1, -1):
            flat[i] = old + s * h
            with torch.no_grad(): two += s * float(mean_loss(m, [(tokens, mask)]))
        flat[i] = old
        exact = grads[names[j]].view(-1)[i].item()
        worst = max(worst, abs(two / (2 * h) - exact) / max(abs(exact), 1e-6))
    return worst


def references(path, dtype, rank, alpha, seeds, n, second, experts, seen=None):
    model = from_gguf(path, dtype)
    if seen is not None: seen.clear()                # building the model may use float32; computing with it may not
    M = model.gguf
    model.config._name_or_path = model.name_or_path = "tiny-" + M.arch
    one, two = tokens_and_mask(M, n, seeds[0], n // 4), tokens_and_mask(M, second, seeds[1], 9)
    d = {"tokens": one[0], "mask": one[1], "tokens.2": two[0], "mask.2": two[1]}
    with torch.no_grad():
        d["logits.base"] = logits(model, one[0])
        t, c = loss_sum(d["logits.base"], *one)
        d["loss.base"] = (t / c).reshape(1)
    m = attach(model, rank, alpha, seeds[0], experts)
    d["logits.lora"], loss, grads, hidden = forward_backward(m, *one)
    d["loss.lora"] = loss.reshape(1)
    d |= {f"hidden.{i}": h for i, h in enumerate(hidden)}
    d |= {"lora." + key(n_): p.detach().clone() for n_, p in m.named_parameters() if "lora_" in n_}
    d |= {"grad." + n_: g for n_, g in grads.items()}
    m.zero_grad()
    batch = mean_loss(m, [one, two])
    batch.backward()
    d["loss.batch"] = batch.detach().reshape(1)
    norms = {n_: g.norm() for n_, g in gradients(m).items()}
    d["gradnorm.batch"] = torch.stack([norms[n_] for n_ in sorted(norms)])
    return d, m, one, two


def widest_margin(path, rank, alpha, seed, n, second, experts, tries):
    """Of `tries` seeds (tokens and adapter) the one whose routing rounding is least likely to change, without and with the adapter; likewise the seed of the second sample."""
    m = {}
    for s in range(seed, seed + tries):
        with true_float64():
            model = from_gguf(path, D64)
            t = tokens_and_mask(model.gguf, n, s, n // 4)[0]
            m[s] = router_margin(model, t), router_margin(attach(model, rank, alpha, s, experts), t)
    best = max(m, key=lambda s: min(m[s]))
    print(f"  router margins (base, with adapter) of {tries} seeds: worst {min(min(x) for x in m.values()):.1e}; seed {best}: {m[best][0]:.1e}, {m[best][1]:.1e}")
    with true_float64():
        m = attach(from_gguf(path, D64), rank, alpha, best, experts)
        gap = {s: router_margin(m, tokens_and_mask(m.get_base_model().gguf, second, s, 9)[0]) for s in range(best + 1000, best + 1000 + tries)}
    second_best = max(gap, key=gap.get)
    print(f"  second sample: seed {second_best}, {gap[second_best]:.1e} with adapter")
    return best, second_best


def golden(path, folder, rank, alpha, seed, n, second, hidden, gguf_lora, experts, tries):
    os.makedirs(folder, exist_ok=True)
    if os.path.abspath(path) != os.path.abspath(folder + "/model.gguf"): shutil.copy(path, folder + "/model.gguf")
    seeds = widest_margin(path, rank, alpha, seed, n, second, experts, tries) if tries > 1 else (seed, seed + 1000)
    seen = set()
    with true_float64(seen=seen):
        d, m, one, two = references(path, D64, rank, alpha, seeds, n, second, experts, seen)
        grads = {k[5:]: v for k, v in d.items() if k.startswith("grad.")}
        fd = finite_difference(m, *one, grads)
    wrong = [k for k, v in d.items() if v.dtype == torch.float32]
    assert not wrong, wrong
    adapter = folder + "/adapter"
    m.save_pretrained(adapter)
    os.path.exists(adapter + "/README.md") and os.remove(adapter + "/README.md")
    cfg = json.load(open(adapter + "/adapter_config.json"))
    json.dump({k: sorted(v) if isinstance(v, list) and v and isinstance(v[0], str) else v for k, v in cfg.items()}, open(adapter + "/adapter_config.json", "w"), indent=2, sort_keys=True)
    sf = adapter + "/adapter_model.safetensors"
    saved = {k: v.float().contiguous() for k, v in load_file(sf).items()}
    save_file(saved, sf, metadata={"format": "pt"})
    M = m.get_base_model().gguf
    lora_path = folder + "/lora-f32.gguf"
    write_lora(lora_path, M, lora_to_gguf(M, saved), alpha)
    # plain.py: its own forward, the file's own layout, the adapter merged in that layout
    with torch.no_grad():
        P = plain.Model(path)
        r0 = relative(d["logits.base"], plain.forward(P, one[0]))
        r1 = relative(d["logits.lora"], plain.forward(plain.Model(path, lora_path), one[0]))
    if P.arch.startswith("qwen35"):                  # transformers' chunked form, also in double
        with true_float64(recurrent=False):
            e, _, _, _ = references(path, D64, rank, alpha, seeds, n, second, experts)
        gr = sorted(relative(d[k], e[k]) for k in d if k.startswith("grad."))
        print(f"  transformers' chunked delta rule in float64 against the loop over tokens: logits {relative(d['logits.lora'], e['logits.lora']):.1e}, "
              f"gradients median {gr[len(gr) // 2]:.1e} worst {gr[-1]:.1e}")
    if not gguf_lora: os.remove(lora_path)
    with true_float64():
        d["loss.adamw"] = adamw_losses(m, *one)
    e, m32, _, _ = references(path, torch.float32, rank, alpha, seeds, n, second, experts)
    e["loss.adamw"] = adamw_losses(m32, *one)
    rel = {k: relative(d[k], e[k]) for k in d if not k.startswith(("tokens", "mask", "lora."))}
    gr = sorted((v, k) for k, v in rel.items() if k.startswith("grad."))
    print(f"{folder}: loss base {d['loss.base'].item():.9f}, with adapter {d['loss.lora'].item():.9f}; {len(grads)} gradients, central differences agree to {fd:.1e}; "
          f"adapter changes the logits by {relative(d['logits.base'], d['logits.lora']):.2f}; largest logit {d['logits.base'].abs().max():.1f}")
    print(f"  plain.py on the GGUF's layout against transformers f64: base {r0:.1e}, with adapter {r1:.1e}; float32 results inside the f64 run: {sorted(seen)}")
    print("  float32 against float64:", "  ".join(f"{k} {v:.1e}" for k, v in rel.items() if not k.startswith(("grad.", "hidden."))),
          f" hidden worst {max(v for k, v in rel.items() if k.startswith('hidden.')):.1e}  grad median {gr[len(gr) // 2][0]:.1e}  worst {gr[-1][0]:.1e} at {gr[-1][1]}")
    gn = sorted((v.norm().item(), k) for k, v in grads.items())
    print(f"  gradient norms {gn[0][0]:.1e} ({gn[0][1].removeprefix('base_model.model.model.')}) .. {gn[-1][0]:.1e}")
    keep = {k: v if v.dtype == torch.int64 else v.float() for k, v in d.items() if hidden or not k.startswith("hidden.")}
    keep |= {k: d[k] for k in d if k.startswith("loss.")}
    assert len(saved) == len(grads) and all(torch.equal(saved[k], keep["lora." + k]) for k in saved)
    save_file({k: v.contiguous() for k, v in keep.items()}, folder + "/golden.safetensors",
              metadata={"rank": str(rank), "alpha": str(alpha), "adamw": json.dumps(ADAMW), "loss": "mean cross entropy over mask[t+1]==1"})
    open(folder + "/tokens.txt", "w").write(" ".join(map(str, one[0].tolist())) + "\n")


if __name__ == "__main__":
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("gguf"); a.add_argument("folder")
    a.add_argument("--rank", type=int, default=4); a.add_argument("--alpha", type=int, default=8); a.add_argument("--seed", type=int, default=7)
    a.add_argument("--tokens", type=int, default=96); a.add_argument("--second", type=int, default=40); a.add_argument("--tries", type=int, default=1)
    a.add_argument("--hidden", action="store_true"); a.add_argument("--gguf-lora", action="store_true"); a.add_argument("--no-experts", action="store_true")
    a = a.parse_args()
    golden(a.gguf, a.folder, a.rank, a.alpha, a.seed, a.tokens, a.second, a.hidden, a.gguf_lora, not a.no_experts, a.tries)
