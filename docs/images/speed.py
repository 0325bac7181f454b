"""Draws speed.svg from speed.jsonl: speed against memory, beside PyTorch. Usage: python3 docs/images/speed.py

benches/peers/chart measures the points.
"""

import json
from math import log2
from pathlib import Path

WIDTH, HEIGHT = 820, 480
LEFT, RIGHT, TOP, BOTTOM = 70, 30, 92, 56
COLOURS = ["#d1601f", "#2a6fb0", "#7a52a8", "#b0306a", "#3d8c50", "#a08a16", "#555"]
# PyTorch's variants: the mark, and its name in the legend.
MARKS = {
    "plain": ("M-5.5 0a5.5 5.5 0 1 0 11 0a5.5 5.5 0 1 0-11 0z", "PEFT"),
    "liger": ("M-5-5h10v10h-10z", "with Liger"),
    "liger+checkpointing": ("M0-6.5l6.5 11h-13z", "with Liger and checkpointing"),
    "liger+checkpointing+nf4": ("M0 6.5l6.5-11h-13z", "and NF4"),
    "compile": ("M0-7l7 7l-7 7l-7-7z", "compiled"),
}


def read():
    """The measured curves by shape and step, and PyTorch's points by the same."""
    curves, points = {}, {}
    for row in map(json.loads, Path(__file__).with_suffix(".jsonl").read_text().splitlines()):
        key = (row.get("base") or row["model"], row["batch"], row["sequence"])
        if "points" in row:
            curves[key] = [(point["planned_bytes"] / 2**30, point["tokens_per_second"]) for point in row["points"]]
        elif "tokens_per_s" in row and row["variant"] in MARKS:
            points.setdefault(key, []).append((row["gib"], row["tokens_per_s"], row["variant"]))
    return curves, points


CURVES, POINTS = read()
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


def place(end, label, taken):
    """The place of a label above or below the end of its curve, where fewer points and labels are."""
    at_x, half = x(end[0]), 4 * len(label)
    near = [y(speed) for gib, speed in ALL if abs(x(gib) - at_x) < half + 6 and (gib, speed) != end]
    near += 3 * [at[1] - 4 for at in taken if abs(at[0] - at_x) < 2 * half]
    best = min(((at_x, y(end[1]) + by) for by in (-12, 22)), key=lambda at: sum(abs(at[1] - 4 - other) < 12 for other in near))
    taken.append(best)
    return best


def legend():
    found = {variant for group in POINTS.values() for *_, variant in group}
    parts = [f'<circle cx="30" cy="50" r="5" fill="#555"/>{text(42, 54, "rullama-train, quantized base, within limits", "start")}']
    at = 30
    for variant in [variant for variant in MARKS if variant in found]:
        name = MARKS[variant][1] if at > 30 else f"PyTorch: {MARKS[variant][1]}"
        parts.append(mark(at, 72, variant, "#555") + text(at + 12, 76, name, "start"))
        at += 36 + 7 * len(name)
    return parts


def chart():
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif" font-size="13">',
        "<title>Training speed against GPU memory, rullama-train and PyTorch</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="#fff"/>',
        text(24, 30, "Training speed against GPU memory, one NVIDIA H200", "start", "#222", ' font-size="16" font-weight="600"'),
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
        parts.append(text(*place(curve[-1], label, taken), label, "middle", colour, ' font-weight="600"'))
    return "\n".join(parts + ["</svg>\n"])


Path(__file__).with_suffix(".svg").write_text(chart())
