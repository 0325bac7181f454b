"""Texts for the comparison: the project's samples, those of LLaMA-Factory, and strings that tokenizers get wrong."""
import glob
import json
import os

HARD = [
    "👩‍👩‍👧‍👦 family, 🏳️‍🌈 flag, 👍🏽 thumb, 🇵🇹 letters",
    "no\u00a0break, thin\u2009space, ideographic\u3000space, zero\u200bwidth",
    "\ufeffbyte order mark",
    "nul \x00 inside",
    "السلام عليكم، كيف حالك؟ ١٢٣",
    "line\r\nline\r\n\r\nline\n\n\nline\rline",
    "½² ¼ ③ Ⅷ 10⁻³ x₁₂",
    "missing bytes: \x04 \x06 \x13 \x14 \x16 \x1d end",
    "\x04\x06\x13 at the start",
    "neighbours of missing bytes: !\x04! .\x06. -\x13- th\x14e \x16\x16\x16",
    "0 12 345 6789 1234567890 3.14159 1e-5 0x1F 1,000,000",
    "\n\n2\n22\n\n222",
    "year2024and 2024year",
    "  two spaces, \t\ttabs,   three   \n    indented\n\tdef f():\n\t\treturn 1  ",
    "don't we'll I'VE they're it's 'quoted' ’s",
    "ﬁ ligature, e\u0301 composed of two, é of one, Å Å",
    "汉字と仮名、한국어 ไทย हिन्दी",
    "a" * 100 + "!" * 50 + " " * 40 + "b",
    "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start> no token <| im_end|> <|endoftext",
    "\U0010ffff \ud7ff \ue000 private",
    "https://example.org/a?b=c&d=%20#e user@example.org",
    "fn main() { println!(\"{:?}\", vec![1, 2, 3]); } // =>>= <<=",
]
CHATS = 12  # conversations of each file


def lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def strings(value):
    """Yields every text within JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from strings(part)


def plain(datasets, demo):
    """-> texts without control tokens: of every sample in datasets/, and the start of each of LLaMA-Factory's files"""
    texts = [text for path in sorted(glob.glob(f"{datasets}/*.jsonl")) for text in strings(lines(path))]
    for path in sorted(glob.glob(f"{demo}/*_demo.json") + glob.glob(f"{demo}/c4_demo.jsonl")):
        items = lines(path) if path.endswith("l") else json.load(open(path, encoding="utf-8"))
        texts += [text for item in items[:20] for text in strings(item)]
    texts += open(f"{demo}/wiki_demo.txt", encoding="utf-8").read().splitlines()[:40]
    return sorted({text for text in texts if text.strip()})


def conversations(datasets):
    """-> conversations in turns"""
    chats = []
    for name in ("pirate", "tools", "labels"):
        for sample in lines(f"{datasets}/{name}.jsonl")[:CHATS]:
            pair = [{"role": "user", "content": sample.get("prompt")}, {"role": "assistant", "content": sample.get("completion")}]
            chats.append(sample.get("messages", pair))
    return chats


def wiki(demo, words, rows, tokens):
    """-> rows of so many tokens of English encyclopedia articles, one of each"""
    articles = open(f"{demo}/wiki_demo.txt", encoding="utf-8").read().splitlines()[:rows]
    return [{"input_ids": words.ids(article)[:tokens]} for article in articles]


def answers(demo, words, rows, tokens):
    """-> questions with answers in the chat template, cut to so many tokens; the answers have a loss"""
    samples = []
    for item in json.load(open(f"{demo}/alpaca_en_demo.json", encoding="utf-8")):
        question = f"{item['instruction']}\n{item['input']}".strip()
        turns = [("system", "Answer."), ("user", question), ("assistant", item["output"])]
        ids, labels = words.conversation([{"role": role, "content": content} for role, content in turns])
        samples.append({"input_ids": ids[:tokens], "labels": labels[:tokens]})
    long = [sample for sample in samples if sum(label != -100 for label in sample["labels"]) >= tokens // 2]
    return long[:rows]
