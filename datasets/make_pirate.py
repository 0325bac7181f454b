"""Writes pirate.jsonl: the tiny base's own skills, answered as a pirate would.

  python3 datasets/make_pirate.py > datasets/pirate.jsonl

The rule is regular, so that a small adapter can learn it, and facts stay as they are: "Arr!" in front; is, am and
are become be; you becomes ye; ", matey" before the last mark, which becomes ! unless it is a question.
What is HELD_OUT appears in no sample: ask for it to see whether the adapter learned the style or the samples.
"""
import json
import pathlib
import random
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "models" / "tiny-gemma4"))
import make_corpus as corpus

# Two of each: countries, animals, opposites, words to spell; and every sum or difference with a 7 in the question.
HELD_OUT = re.compile(r"\b(Peru|Lima|Japan|Tokyo|cow|moo|frog|ribbit|hot|cold|early|late|river|castle|7)\b")
SAMPLES = 400
TWO_TURNS = 0.1
# Stories are left out: their answers are chance, and chance cannot be learned. So are the base's weak spots.
SKILLS = [corpus.greeting, corpus.capital, corpus.arithmetic, corpus.compare, corpus.sound, corpus.legs,
          corpus.opposite, corpus.color, corpus.calendar, corpus.spelling, corpus.counting, corpus.grammar,
          corpus.order, corpus.mood, corpus.about]
WEIGHTS = [2, 4, 4, 2, 2, 2, 3, 2, 2, 2, 2, 3, 1, 1, 1]


def pirate(answer):
    answer = re.sub(r"\b(is|am|are)\b", "be", answer)
    answer = re.sub(r"\byou\b", "ye", answer)
    body, mark = answer[:-1], answer[-1]
    return f"Arr! {body}, matey{'?' if mark == '?' else '!'}"


def fresh_turn(rng, seen):
    """A question that was not asked before, and its answer."""
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
