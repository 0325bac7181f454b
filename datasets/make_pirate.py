"""Writes pirate.jsonl: skills of the tiny base, answered like a pirate.

  python3 datasets/make_pirate.py > datasets/pirate.jsonl

The rule is regular, so that a small adapter can learn it: the unchanged answer, then " Aye, matey!".
The style comes last because the base is small: with "Arr!" in front, or with "is" changed to "be", sixty steps
teach the style but lose the answers.
No sample contains HELD_OUT facts: ask for them to see whether the adapter learned the style or the samples.
"""
import json
import pathlib
import random
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "models" / "tiny-gemma4"))
import make_corpus as corpus

# Two each of countries, animals, opposites and words to spell, and the number 7.
HELD_OUT = re.compile(r"\b(Peru|Lima|Japan|Tokyo|cow|moo|frog|ribbit|hot|cold|early|late|river|castle|7)\b")
SAMPLES = 400
TWO_TURNS = 0.1
SKILLS = corpus.SKILLS
#          greeting, capital, arithmetic, compare, sound, legs, opposite, color, calendar, spelling, counting,
#          grammar, order, recall, mood, story, about
WEIGHTS = [2, 4, 4, 2, 2, 2, 3, 2, 2, 5, 2, 3, 1, 1, 1, 1, 1]


def pirate(answer):
    return f"{answer} Aye, matey!"


def fresh_turn(rng, seen):
    """A new question and its answer."""
    while True:
        question, answer = rng.choices(SKILLS, WEIGHTS)[0](rng)
        if question not in seen and not HELD_OUT.search(f"{question} {answer}"):
            seen.add(question)
            return [{"role": "user", "content": question}, {"role": "assistant", "content": pirate(answer)}]


if __name__ == "__main__":
    rng, seen = random.Random(1), set()
    for _ in range(SAMPLES):
        messages = fresh_turn(rng, seen)
        if rng.random() < TWO_TURNS:
            messages += fresh_turn(rng, seen)
        print(json.dumps({"messages": messages}))
