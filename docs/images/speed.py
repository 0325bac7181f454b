"""Draws speed.svg from speed.jsonl: speed against memory, beside PEFT and unsloth. Usage: python3 docs/images/speed.py

benches/peers/chart measures the points.
"""

import json
from math import log2
from pathlib import Path

WIDTH, HEIGHT = 820, 500
LEFT, RIGHT, TOP, BOTTOM = 70, 30, 114, 56
COLOURS = ["#d1601f", "#2a6fb0", "#7a52a8", "#b0306a", "#3d8c50", "#a08a16", "#555"]
# Variants of the peers: the mark, and its name in the legend.
MARKS = {
    "plain": ("M-5.5 0a5.5 5.5 0 1 0 11 0a5.5 5.5 0 1 0-11 0z", "PEFT"),
    "liger": ("M-5-5h10v10h-10z", "PEFT, Liger"),
    "liger+bf16-adapter": ("M0-7l7 7l-7 7l-7-7z", "and adapter in bf16"),
    "liger+checkpointing": ("M0-6.5l6.5 11h-13z", "and checkpointing"),
    "unsloth": ("M-6-6l12 12M-6 6l12-12", "unsloth"),
    "unsloth+checkpointing": ("M-7 0h14M0-7v14", "with checkpointing"),
    "unsloth+checkpointing+nf4": ("M-7 0h14M0-7v14M-5-5l10 10M-5 5l10-10", "in 4 bits, its default"),
}


def read():
    """The measured curves by shape and step, and the peers' points by the same."""
    curves, points = {}, {}
    for row in map(json.loads, Path(__file__).with_suffix(".jsonl").read_text().splitlines()):
        key = (row.get("base") or row["model"], row["batch"], row["sequence"])
        if "points" in row:
            curves[key] = [(point["planned_bytes"] / 2**30, point["tokens_per_second"]) for point in row["points"]]
        elif "tokens_per_s" in row and row["variant"] in MARKS:
            points.setdefault(key, []).append((row["gib"], row["tokens_per_s"], row["variant"]))
    return curves, points


CURVES, POINTS = read()
DEVICE = json.loads(Path(__file__).with_suffix(".jsonl").read_text().splitlines()[0])["device"].split(" (")[0]
ALL = [point[:2] for group in [*CURVES.values(), *POINTS.values()] for point in group]
GIB = [2**i for i in range(1, 8) if min(g for g, _ in ALL) * 0.7 < 2**i < max(g for g, _ in ALL) * 1.3]
LEAST, MOST = min(g for g, _ in ALL) * 0.6, max(g for g, _ in ALL) * 1.25
FASTEST = 5_000 * (int(max(speed for _, speed in ALL)) // 5_000 + 1)


def x(gib):
    return LEFT + (WIDTH - LEFT - RIGHT) * (log2(gib) - log2(LEAST)) / (log2(MOST) - log2(LEAST))


def y(speed):
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * speed / FASTEST


def text(at_x, at_y, words, anchor="middle", colour="#555", extra=""):
    return f'<text x="{at_x:.0f}" y="{at_y:.0f}" text-anchor="{anchor}" fill="{colour}"{extra}>{words}</text>'


def line(points, colour, extra=""):
    places = " ".join(f"{x(gib):.1f},{y(speed):.1f}" for gib, speed in points)
    return f'<polyline points="{places}" fill="none" stroke="{colour}"{extra}/>'


def mark(at_x, at_y, variant, colour):
    path = MARKS[variant][0]
    return f'<path d="{path}" transform="translate({at_x:.1f} {at_y:.1f})" fill="#fff" stroke="{colour}" stroke-width="2"/>'


def place(curve, label, taken):
    """The place of a label above or below a point of its curve, from the last one on, where the fewest points and labels are."""
    half = 4 * len(label)

    def crowd(at):
        points = sum(abs(x(gib) - at[0]) < half + 6 and abs(at[1] - 4 - y(speed)) < 12 for gib, speed in ALL)
        return points + 3 * sum(abs(at[0] - other[0]) < 2 * half and abs(at[1] - other[1]) < 14 for other in taken)

    best = min(((x(gib), y(speed) + by) for gib, speed in curve[::-1] for by in (-12, 22) if x(gib) + half < WIDTH), key=crowd)
    taken.append(best)
    return best


def legend():
    found = {variant for group in POINTS.values() for *_, variant in group}
    parts = [f'<circle cx="30" cy="50" r="5" fill="#555"/>{text(42, 54, "rullama-train, quantized base, within limits", "start")}']
    for row, of_unsloth in enumerate([False, True]):
        at, down = 30, 72 + 22 * row
        for variant in [variant for variant in MARKS if variant in found and variant.startswith("unsloth") == of_unsloth]:
            parts.append(mark(at, down, variant, "#555") + text(at + 12, down + 4, MARKS[variant][1], "start"))
            at += 36 + 7 * len(MARKS[variant][1])
    return parts


def chart():
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif" font-size="13">',
        "<title>Training speed against GPU memory, rullama-train, PEFT and unsloth</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="#fff"/>',
        text(24, 30, f"Training speed against GPU memory, one {DEVICE}", "start", "#222", ' font-size="16" font-weight="600"'),
        *legend(),
        text(WIDTH - RIGHT, 54, "tokens per second; up and to the left is better", "end"),
    ]
    for speed in range(0, FASTEST + 1, 5_000):
        parts.append(line([(LEAST, speed), (MOST, speed)], "#e5e5e5"))
        parts.append(text(LEFT - 10, y(speed) + 4, f"{speed:,}".replace(",", " "), "end"))
    for gib in GIB:
        parts.append(text(x(gib), HEIGHT - BOTTOM + 22, gib))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "GiB of GPU memory, logarithmic"))
    taken = []
    for i, (key, curve) in enumerate(CURVES.items()):
        colour, (name, batch, sequence) = COLOURS[i % len(COLOURS)], key
        parts.append(line(curve, colour, ' stroke-width="2"'))
        parts += [f'<circle cx="{x(gib):.1f}" cy="{y(speed):.1f}" r="4.5" fill="{colour}"/>' for gib, speed in curve]
        parts += [mark(x(gib), y(speed), variant, colour) for gib, speed, variant in POINTS.get(key, [])]
        label = f"{name}, {batch} × {sequence}"
        parts.append(text(*place(curve, label, taken), label, "middle", colour, ' font-weight="600"'))
    return "\n".join(parts + ["</svg>\n"])


Path(__file__).with_suffix(".svg").write_text(chart())
