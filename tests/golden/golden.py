"""References for one GGUF file: logits, loss, hidden states and every LoRA gradient, in true float64 through PEFT.

    golden.py FOLDER [--rank 4 --alpha 8 --seed 7 --tokens 96 --no-hidden]

reads FOLDER/model.gguf, writes FOLDER/golden.safetensors and FOLDER/adapter/, and prints how far float32 PyTorch is
from the same numbers: the yardstick for every tolerance.
"""
import argparse
import json
import os

import torch
import torch.nn.functional as nnf
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from gemma4 import fill_adapter, from_gguf, logits, lora_key, relative, router_margin, true_float64

MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "per_layer_input_gate", "per_layer_projection", "router.proj"]
PARAMETERS = ["experts.gate_up_proj", "experts.down_proj"]
ADAMW = dict(lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)


def tokens_and_mask(n, vocab, seed, prompt):
    """`<bos>`, then n - 1 ordinary ids; mask 0 on the prompt, 1 on what is trained."""
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(267, vocab, (n,), generator=g)  # past the special, byte and newline tokens
    tokens[n // 2: n // 2 + 8] = tokens[3:11].clone()  # a repeated span, so that attention has something to find
    tokens[0] = 2
    mask = torch.ones(n, dtype=torch.long)
    mask[:prompt] = 0
    return tokens, mask


def loss_sum(z, tokens, mask):
    """Cross entropy where position t predicts tokens[t+1], counted where mask[t+1] is 1: (sum, count)."""
    targets, counted = tokens[1:], mask[1:].bool()
    return nnf.cross_entropy(z[:-1][counted], targets[counted], reduction="sum"), int(counted.sum())


def attach(model, rank, alpha, seed, experts, b_std=0.04):
    """PEFT around the frozen model, with a random adapter in the model's own precision; on the experts' matrices where `experts`."""
    names = [name for name, _ in model.named_modules()]
    modules = [m for m in MODULES if any(name.endswith("." + m) for name in names)]
    parameters = dict(target_parameters=PARAMETERS) if experts else {}
    lora = LoraConfig(r=rank, lora_alpha=alpha, target_modules=modules, **parameters, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM")
    m = get_peft_model(model, lora, autocast_adapter_dtype=False)
    for name, p in m.named_parameters():
        p.requires_grad_("lora_" in name)
        if "lora_" in name:
            p.data = p.data.to(model.dtype)
    fill_adapter(m, seed, b_std)
    return m.eval()


def mean_loss(m, sequences):
    """Token-mean loss over sequences that do not see each other."""
    parts = [loss_sum(logits(m, t), t, k) for t, k in sequences]
    return sum(s for s, _ in parts) / sum(n for _, n in parts)


def gradients(m):
    return {lora_key(n): p.grad.clone() for n, p in m.named_parameters() if p.grad is not None}


def forward_backward(m, tokens, mask):
    """-> logits, mean loss, {PEFT key: gradient}, [input of layer 0, output of layer 0, output of layer 1, ...]"""
    hidden, layers = [], m.get_base_model().model.layers
    hooks = [layers[0].register_forward_pre_hook(lambda _m, args: hidden.append(args[0].detach()[0]))]
    hooks += [layer.register_forward_hook(lambda _m, _a, out: hidden.append(out.detach()[0])) for layer in layers]
    m.zero_grad()
    z = logits(m, tokens)
    total, count = loss_sum(z, tokens, mask)
    (total / count).backward()
    [h.remove() for h in hooks]
    return z.detach(), (total / count).detach(), gradients(m), hidden


def adamw_losses(m, tokens, mask, steps=10):
    """Loss before each AdamW step on one sequence, and after the last. Changes the adapter."""
    optimizer, losses = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], **ADAMW), []
    for _ in range(steps + 1):
        loss = mean_loss(m, [(tokens, mask)])
        losses.append(loss.detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.stack(losses)


def finite_difference(m, tokens, mask, grads, h=1e-5):
    """Largest relative difference between gradients and central differences, over twelve elements."""
    parameters = {lora_key(n): p for n, p in m.named_parameters()}
    g, names, worst = torch.Generator().manual_seed(3), sorted(grads), 0.0
    for j in torch.randperm(len(names), generator=g)[:12].tolist():
        flat = parameters[names[j]].data.view(-1)
        i, two_sided = int(torch.randint(flat.numel(), (1,), generator=g)), 0.0
        old = flat[i].item()
        for sign in (1, -1):
            flat[i] = old + sign * h
            with torch.no_grad():
                two_sided += sign * float(mean_loss(m, [(tokens, mask)]))
        flat[i] = old
        exact = grads[names[j]].view(-1)[i].item()
        worst = max(worst, abs(two_sided / (2 * h) - exact) / max(abs(exact), 1e-6))
    return worst


def references(path, dtype, rank, alpha, seed, n, experts):
    """Every reference tensor in one precision, and the PEFT model before any optimizer step changed it."""
    model = from_gguf(path, dtype)
    vocab = model.config.vocab_size
    model.config._name_or_path = model.name_or_path = os.path.basename(os.path.dirname(os.path.abspath(path)))
    one = tokens_and_mask(n, vocab, seed, prompt=n // 4)
    two = tokens_and_mask(40, vocab, seed + 1000, prompt=9)
    d = {"tokens": one[0], "mask": one[1], "tokens.2": two[0], "mask.2": two[1]}
    with torch.no_grad():
        d["logits.base"] = logits(model, one[0])
        total, count = loss_sum(d["logits.base"], *one)
        d["loss.base"] = (total / count).reshape(1)
    m = attach(model, rank, alpha, seed, experts)
    d["logits.lora"], loss, grads, hidden = forward_backward(m, *one)
    d["loss.lora"] = loss.reshape(1)
    d |= {f"hidden.{i}": h for i, h in enumerate(hidden)}
    d |= {"lora." + lora_key(n): p.detach().clone() for n, p in m.named_parameters() if "lora_" in n}  # AdamW moves them later
    d |= {"grad." + n: g for n, g in grads.items()}
    m.zero_grad()
    batch = mean_loss(m, [one, two])
    batch.backward()
    d["loss.batch"] = batch.detach().reshape(1)
    norms = {name: g.norm() for name, g in gradients(m).items()}
    d["gradnorm.batch"] = torch.stack([norms[name] for name in sorted(norms)])
    return d, m, one


def golden(folder, rank=4, alpha=8, seed=7, n=96, hidden=True, experts=False):
    """Writes FOLDER/golden.safetensors and FOLDER/adapter/; -> {quantity: relative difference of float32}."""
    path = os.path.join(folder, "model.gguf")
    with true_float64():
        d, m, one = references(path, torch.float64, rank, alpha, seed, n, experts)
        grads = {k[len("grad."):]: v for k, v in d.items() if k.startswith("grad.")}
        differences = finite_difference(m, *one, grads)
        if m.config.enable_moe_block:
            print(f"{folder}: router margin {router_margin(m, one[0]):.1e}")
        adapter = os.path.join(folder, "adapter")
        m.save_pretrained(adapter)
        os.path.exists(adapter + "/README.md") and os.remove(adapter + "/README.md")
        weights = adapter + "/adapter_model.safetensors"
        save_file({k: v.float().contiguous() for k, v in load_file(weights).items()}, weights, metadata={"format": "pt"})
        d["loss.adamw"] = adamw_losses(m, *one)
    e, m32, _ = references(path, torch.float32, rank, alpha, seed, n, experts)
    e["loss.adamw"] = adamw_losses(m32, *one)

    rel = {k: relative(d[k], e[k]) for k in d if not k.startswith(("tokens", "mask", "lora."))}
    worst = sorted((v, k) for k, v in rel.items() if k.startswith("grad."))
    yard = {k: v for k, v in rel.items() if not k.startswith(("grad.", "hidden."))}
    yard["hidden worst"] = max(v for k, v in rel.items() if k.startswith("hidden."))
    yard |= {"grad median": worst[len(worst) // 2][0], "grad worst": worst[-1][0]}
    print(f"{folder}: loss base {d['loss.base'].item():.9f}, with adapter {d['loss.lora'].item():.9f}; {len(grads)} gradients, "
          f"central differences agree to {differences:.1e}; adapter changes the logits by {relative(d['logits.base'], d['logits.lora']):.2f}")
    print("  float32 against float64:", "  ".join(f"{k} {v:.1e}" for k, v in yard.items()), "at", worst[-1][1])

    keep = {k: v if v.dtype == torch.int64 else v.float() for k, v in d.items() if hidden or not k.startswith("hidden.")}
    keep |= {k: d[k] for k in d if k.startswith("loss.")}  # a few numbers: kept in f64
    facts = {"rank": str(rank), "alpha": str(alpha), "adamw": json.dumps(ADAMW),
             "loss": "mean cross entropy over mask[t+1]==1, after the softcap"}
    saved = load_file(weights)
    assert len(saved) == len(grads) and all(torch.equal(saved[k], keep["lora." + k]) for k in saved)
    save_file({k: v.contiguous() for k, v in keep.items()}, os.path.join(folder, "golden.safetensors"), metadata=facts)
    return yard


if __name__ == "__main__":
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("folder")
    a.add_argument("--rank", type=int, default=4)
    a.add_argument("--alpha", type=int, default=8)
    a.add_argument("--seed", type=int, default=7)
    a.add_argument("--tokens", type=int, default=96)
    a.add_argument("--no-hidden", action="store_true")
    a.add_argument("--experts", action="store_true")
    a = a.parse_args()
    golden(a.folder, a.rank, a.alpha, a.seed, a.tokens, not a.no_hidden, a.experts)
