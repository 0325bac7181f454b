"""Writes losses.json: advantages, losses, measurements and gradients of TRL's GRPOTrainer for given completions and rewards, in float64.

  python losses.py > losses.json

Needs requirements.txt beside this file. Advantages come from the lines of `_generate_and_score_completions` between rewards and advantages,
which run here as they stand there; everything else from `_compute_loss`. The numbers are such that f32 holds them exactly.
"""
import inspect
import itertools
import json
import random
import textwrap
from types import SimpleNamespace

import torch
from trl.trainer import grpo_trainer
from trl.trainer.grpo_trainer import GRPOTrainer

torch.set_default_dtype(torch.float64)
GENERATIONS, LENGTHS, LONGEST, BATCH = 4, [3, 5, 1, 4, 2, 5, 3, 4], 6, 4
FINISHED = [True, True, False, True, True, False, True, True]
WEIGHTS = [1.0, 0.5]
LOSSES = ["dapo", "grpo", "bnpo", "dr_grpo", "cispo"]


def number(rng, low, high):
    """A multiple of 1/64."""
    return rng.randint(int(64 * low), int(64 * high)) / 64


def given():
    rng = random.Random(11)
    rows = lambda low, high: [[number(rng, low, high) for _ in range(n)] for n in LENGTHS]
    logps = rows(-4, -0.25)
    near = lambda rows, by: [[x + number(rng, -by, by) for x in row] for row in rows]
    scores = [[number(rng, 0, 2) for _ in LENGTHS], [number(rng, -1, 1) for _ in LENGTHS]]
    scores[0][2] = None
    scores[1][5] = None
    scores[0][6] = scores[1][6] = None
    return {"logps": logps, "old": near(logps, 0.75), "reference": near(logps, 1.0), "scores": scores}


def padded(rows):
    return torch.tensor([row + [0.0] * (max(LENGTHS) - len(row)) for row in rows])


def advantages(scores, scale):
    """Runs TRL's own lines. Returns the advantages and the measurements."""
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    start = source.index("        unscorable_mask = ")
    middle = source.index("        # Slice to keep only the local part of the data")
    measured = source.index("        # Calculate mean reward per function")
    end = source.index("        # Log prompts and completions")
    code = textwrap.dedent(source[start:middle] + source[measured:end])
    per_func = torch.tensor([[float("nan") if x is None else x for x in row] for row in zip(*scores)])
    metrics = {"train": __import__("collections").defaultdict(list)}
    trainer = SimpleNamespace(
        multi_objective_aggregation="sum_then_normalize", reward_weights=torch.tensor(WEIGHTS), scale_rewards=scale,
        reward_funcs=[None] * len(scores), reward_func_names=["first", "second"], _metrics=metrics,
    )
    names = {"self": trainer, "rewards_per_func": per_func, "num_generations": GENERATIONS, "device": "cpu", "mode": "train"}
    exec(code, vars(grpo_trainer), names)
    return names["advantages"], {name: values[0] for name, values in metrics["train"].items()}


def loss(case, data, advantages):
    """TRL's loss of the step: the sum over its micro-batches. Returns it, its gradient, and the measurements."""
    total, slopes, metrics = 0.0, [], []
    counts = [f or not case["mask_truncated_completions"] for f in FINISHED]
    tokens = sum(n for n, c in zip(LENGTHS, counts) if c)
    steps = len(LENGTHS) // case["batch_size"]
    for first in range(0, len(LENGTHS), case["batch_size"]):
        rows = slice(first, first + case["batch_size"])
        logps = padded(data["logps"])[rows].clone().requires_grad_()
        mask = torch.tensor([[float(t < n and c) for t in range(max(LENGTHS))] for n, c in zip(LENGTHS, counts)])[rows]
        trainer = SimpleNamespace(
            _get_per_token_logps_and_entropies=lambda *a, **k: (logps, torch.zeros_like(logps), None),
            aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None, beta=case["beta"],
            importance_sampling_level=case["importance_sampling_level"], loss_type=case["loss_type"],
            epsilon_low=case["epsilon"], epsilon_high=case["epsilon_high"], use_vllm=False, max_completion_length=LONGEST,
            args=SimpleNamespace(delta=case["delta"], use_bias_correction_kl=False, steps_per_generation=steps),
            model=SimpleNamespace(training=True), current_gradient_accumulation_steps=steps, _entropy_bonus_enabled=False,
            accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
            _metrics={"train": __import__("collections").defaultdict(list)},
        )
        ids = torch.zeros(mask.shape, dtype=torch.long)
        inputs = {
            "prompt_ids": ids[:, :1], "prompt_mask": torch.ones_like(ids[:, :1]), "completion_ids": ids, "completion_mask": mask,
            "advantages": advantages[rows], "num_items_in_batch": torch.tensor(float(tokens)),
        }
        if case["old"]:
            inputs["old_per_token_logps"] = padded(data["old"])[rows]
        if case["beta"]:
            inputs["ref_per_token_logps"] = padded(data["reference"])[rows]
        value = GRPOTrainer._compute_loss(trainer, None, inputs)
        value.backward()
        total += value.item()
        own = LENGTHS[rows]
        slopes += [row[:n] for row, n in zip(logps.grad.tolist(), own)]
        metrics.append({name: values[0] for name, values in trainer._metrics["train"].items() if name != "entropy"})
    # Of several micro-batches, measurements are means of means, which is not ours.
    return {"loss": total, "slopes": slopes, "metrics": metrics[0] if steps == 1 else None}


def main():
    data = given()
    found = {"lengths": LENGTHS, "finished": FINISHED, "generations": GENERATIONS, "weights": WEIGHTS, "max_completion_length": LONGEST}
    found |= data
    found["advantages"] = {}
    for scale in ["group", "batch", "none"]:
        values, metrics = advantages(data["scores"], scale)
        found["advantages"][scale] = {"values": values.tolist(), "metrics": metrics}
    cases = []
    for loss_type, level, scale, (old, beta, delta, masked), batch in itertools.product(
        LOSSES, ["token", "sequence"], ["group", "none"],
        [(False, 0.0, None, False), (True, 0.0, None, False), (True, 0.04, 1.4, False), (True, 0.04, None, True), (False, 0.04, None, True)],
        [8, BATCH],
    ):
        if loss_type == "cispo" and delta:
            continue
        case = {
            "loss_type": loss_type, "importance_sampling_level": level, "scale_rewards": scale, "old": old, "beta": beta, "delta": delta,
            "mask_truncated_completions": masked, "batch_size": batch, "epsilon": 0.2,
            "epsilon_high": 1.5 if loss_type == "cispo" else 0.28,
        }
        advantage = torch.tensor(found["advantages"][scale]["values"])
        cases.append(case | loss(case, data, advantage))
    found["cases"] = cases
    rounded = lambda x: float(f"{x:.9g}") if isinstance(x, float) else x
    walk = lambda x: {k: walk(v) for k, v in x.items()} if isinstance(x, dict) else [walk(v) for v in x] if isinstance(x, list) else rounded(x)
    print(json.dumps(walk(found)))


main()
