"""Writes preference.jsonl: pairs of a short and a long answer, both right.

  python3 datasets/make_preference.py > datasets/preference.jsonl

The chosen answer is the tiny base's own, the rejected one goes on as the answers of pirate.jsonl do. No sample contains
HELD_OUT facts: ask for them to see whether the model has learned to be short or the samples.
"""
import json
import random

from make_pirate import HELD_OUT, SKILLS, WEIGHTS, pirate

SAMPLES = 300


def fresh_pair(rng, seen):
    """A new question with a short and a long answer."""
    while True:
        question, short = rng.choices(SKILLS, WEIGHTS)[0](rng)
        if question not in seen and not HELD_OUT.search(f"{question} {short}"):
            seen.add(question)
            return {"prompt": question, "chosen": short, "rejected": pirate(short)}


if __name__ == "__main__":
    rng, seen = random.Random(3), set()
    for _ in range(SAMPLES):
        print(json.dumps(fresh_pair(rng, seen)))
