"""Writes losses.json: distillation losses and their gradients by PyTorch's autograd, in float64.

  python losses.py > losses.json

Needs torch. Over the whole vocabulary the loss is `GKDTrainer.generalized_jsd_loss` of TRL (trl/experimental/gkd/gkd_trainer.py), whose
formulas stand below. Over the teacher's likeliest tokens it is the same of both distributions with all other tokens in one bucket.
"""
import json
import math

import torch
import torch.nn.functional as F

ROWS, VOCAB, SOFTCAP = 4, 37, 8.0


def divergence(student, teacher, beta):
    """Of log-probabilities, per row. `beta` 0 is the forward KL, 1 the reverse KL."""
    if beta == 0:
        each = F.kl_div(student, teacher, reduction="none", log_target=True)
    elif beta == 1:
        each = F.kl_div(teacher, student, reduction="none", log_target=True)
    else:
        mixed = torch.logsumexp(torch.stack([student + math.log1p(-beta), teacher + math.log(beta)]), dim=0)
        of_teacher = F.kl_div(mixed, teacher, reduction="none", log_target=True)
        of_student = F.kl_div(mixed, student, reduction="none", log_target=True)
        each = beta * of_teacher + (1 - beta) * of_student
    return each.sum(-1)


def buckets(logs, ids):
    """Log-probabilities of `ids` [N, top], and of all other tokens."""
    listed = torch.zeros_like(logs, dtype=torch.bool).scatter(1, ids, True)
    rest = torch.logsumexp(logs.masked_fill(listed, -math.inf), dim=1, keepdim=True)
    return torch.cat([logs.gather(1, ids), rest], dim=1)


def case(logits, teacher, targets, coefficients, top, beta, temperature, weight, sft_weight, softcap):
    logits = logits.clone().requires_grad_()
    capped = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    student, taught = F.log_softmax(capped / temperature, -1), F.log_softmax(teacher / temperature, -1)
    ids = taught.topk(top or VOCAB, dim=1).indices
    given = buckets(taught, ids) if top else taught.gather(1, ids)
    divergences = divergence(buckets(student, ids) if top else student.gather(1, ids), given, beta)
    entropies = F.cross_entropy(capped, targets, reduction="none")
    (coefficients * (weight * divergences + sft_weight * entropies)).sum().backward()
    return {
        "top": top, "beta": beta, "temperature": temperature, "weight": weight, "sft_weight": sft_weight, "softcap": softcap,
        "ids": ids.tolist(), "logs": given.tolist(), "divergences": divergences.tolist(), "entropies": entropies.tolist(),
        "dlogits": logits.grad.flatten().tolist(),
    }


def main():
    torch.manual_seed(7)
    logits, teacher = (4 * torch.randn(ROWS, VOCAB, dtype=torch.float64) for _ in range(2))
    # A teacher near its student, and one that is sure.
    teacher[1] = logits[1] + 0.1 * teacher[1]
    teacher[2] *= 4
    targets, coefficients = torch.tensor([3, 0, 36, 11]), torch.tensor([0.25, 0.4, -0.1, 2.0], dtype=torch.float64)
    forms = [(0, 1.0), (0, 2.0), (1, 1.0), (1, 0.7), (0.5, 1.0), (0.5, 0.9), (0.1, 1.5), (0.9, 1.0)]
    cases = []
    for top in [1, 5, 36, 0]:
        for i, (beta, temperature) in enumerate(forms):
            weight, sft_weight = [(1.0, 0.0), (0.75, 0.5)][i % 2]
            softcap = SOFTCAP if i % 3 == 2 else None
            cases.append(case(logits, teacher, targets, coefficients, top, beta, temperature, weight, sft_weight, softcap))
    print(json.dumps({
        "rows": ROWS, "vocab": VOCAB, "logits": logits.flatten().tolist(), "targets": targets.tolist(),
        "coefficients": coefficients.tolist(), "cases": cases,
    }))


if __name__ == "__main__":
    main()
