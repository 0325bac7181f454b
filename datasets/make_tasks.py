"""Writes the datasets of three tasks, in the words that the tiny base knows.

  python3 datasets/make_tasks.py tools   > datasets/tools.jsonl
  python3 datasets/make_tasks.py stories > datasets/stories.jsonl
  python3 datasets/make_tasks.py labels  > datasets/labels.jsonl

No sample contains HELD_OUT facts: ask for them to see whether the adapter learned the task or the samples.
"""
import json
import pathlib
import random
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "models" / "tiny-gemma4"))
import make_corpus as corpus

HELD_OUT = re.compile(r"\b(Peru|Lima|Japan|Tokyo|cow|moo|frog|ribbit|hot|cold|early|late|river|castle|7|Zoe)\b")


def call(name, **arguments):
    return json.dumps({"name": name, "arguments": arguments})


def weather(rng):
    city = rng.choice(list(corpus.CAPITALS.values()))
    day = rng.choice(["today", "tomorrow", *corpus.DAYS])
    on = day if day[0].islower() else f"on {day}"
    question = corpus.pick(rng, f"What is the weather in {city} {on}?", f"How is the weather in {city} {on}?", f"Tell me the weather in {city} {on}.")
    return question, call("get_weather", city=city, day=day)


def add(rng):
    a, b = rng.randint(0, 20), rng.randint(0, 20)
    return corpus.pick(rng, f"What is {a} plus {b}?", f"Add {a} and {b}.", f"{a} + {b} = ?"), call("add", a=a, b=b)


def capital(rng):
    country = rng.choice(list(corpus.CAPITALS))
    return corpus.pick(rng, f"What is the capital of {country}?", f"Name the capital of {country}.", f"Tell me the capital of {country}."), call("get_capital", country=country)


def spell(rng):
    word = rng.choice(corpus.WORDS)
    return corpus.pick(rng, f"Spell the word {word}.", f"How do you spell {word}?"), call("spell", word=word)


def color(rng):
    thing = rng.choice(list(corpus.COLORS))
    return corpus.pick(rng, f"What color is {thing}?", f"Tell me the color of {thing}."), call("get_color", thing=thing)


def tools(rng):
    """A question, and the call that answers it as JSON; nothing to call is an empty list."""
    if rng.random() < 0.1:
        return rng.choice([corpus.greeting, corpus.mood])(rng)[0], "[]"
    return rng.choices([weather, add, capital, spell, color], [3, 3, 2, 2, 1])[0](rng)


def conversation(question, answer):
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def labels(rng):
    """A message, and which of six kinds it is."""
    kinds = {
        "math": [corpus.arithmetic, corpus.compare, corpus.counting],
        "geography": [corpus.capital],
        "animals": [corpus.sound, corpus.legs],
        "language": [corpus.opposite, corpus.grammar, corpus.spelling],
        "calendar": [corpus.calendar],
        "talk": [corpus.greeting, corpus.mood, corpus.about],
    }
    label = rng.choice(list(kinds))
    return rng.choice(kinds[label])(rng)[0], label


def stories(rng):
    """Stories whose moral follows from how they end: text without turns."""
    _, story = corpus.story(rng)
    virtue = next(virtue for mood, virtue in {"happy": "kind", "tired": "patient", "excited": "curious"}.items() if mood in story)
    return f"{story} The moral: be {virtue}, and you will find a friend."


if __name__ == "__main__":
    makers = {
        "tools": (500, lambda rng: conversation(*tools(rng))),
        "stories": (400, lambda rng: {"text": stories(rng)}),
        "labels": (500, lambda rng: dict(zip(("prompt", "completion"), labels(rng)))),
    }
    (count, make), rng, seen = makers[sys.argv[1]], random.Random(1), set()
    while len(seen) < count:
        line = json.dumps(make(rng))
        if line not in seen and not HELD_OUT.search(line):
            seen.add(line)
            print(line)
