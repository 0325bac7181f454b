"""Writes prompts with the right number, for train.objective = "grpo". No sample has an answer in words.

    python3 datasets/make_sums.py words > datasets/sums.jsonl
    python3 datasets/make_sums.py plain > datasets/additions.jsonl

The tiny base takes the first two forms of `words` for differences, and answers the last one right.
"""

import json
import random
import sys

FORMS = {
    "words": ["{a} and {b} make how many?", "{a} more than {b}?", "Sum of {a} and {b}?"],
    "plain": ["What is {a} + {b}?", "Calculate {a} + {b}."],
}
SAMPLES = 240
LARGEST = {"words": 30, "plain": 20}


def main(kind):
    rng = random.Random(7)
    seen = set()
    while len(seen) < SAMPLES:
        a, b = rng.randint(2, LARGEST[kind]), rng.randint(2, LARGEST[kind])
        prompt = FORMS[kind][len(seen) % len(FORMS[kind])].format(a=a, b=b)
        if prompt not in seen:
            seen.add(prompt)
            print(json.dumps({"prompt": prompt, "answer": a + b}))


main(sys.argv[1])
