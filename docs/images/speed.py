"""Draws speed.svg: speed against memory, beside PyTorch. Usage: python3 docs/images/speed.py

One NVIDIA H200, driver 580.159; rank 16 on all linear modules; docs/benchmarks.md says how it was measured.
"""

from math import log2
from pathlib import Path

# Shape and step; (GiB, tokens per second) of rullama-train, and of PyTorch with PEFT; colour; whether labels stand above.
ROWS = [
    ("e2b, 16 × 512", [(8, 15915), (48, 19589)], (47.9, 16763), "#2a6fb0", True),
    ("e2b, 4 × 2048", [(8, 15208), (48, 18611)], (48.6, 13826), "#d1601f", False),
    ("e2b, 1 × 2048", [(4, 11040)], (28.4, 8585), "#3d8c50", True),
    ("e4b, 4 × 2048", [(12, 9707), (68.5, 11904)], (75.7, 10028), "#7a52a8", True),
    ("qwen3-8b, 4 × 2048", [(12, 6741), (72.8, 9055)], (83.5, 10209), "#b0306a", False),
    ("e2b, 1 × 512", [(8, 7672)], (13.8, 2502), "#a08a16", True),
]

WIDTH, HEIGHT = 820, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 30, 70, 56
GIB = [4, 8, 16, 32, 64]
SPEEDS = range(0, 20_001, 5_000)


def x(gib):
    return LEFT + (WIDTH - LEFT - RIGHT) * (log2(gib) - log2(3)) / (log2(96) - log2(3))


def y(speed):
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * speed / 20_000


def text(at_x, at_y, words, anchor="middle", colour="#555", extra=""):
    return f'<text x="{at_x:.0f}" y="{at_y:.0f}" text-anchor="{anchor}" fill="{colour}"{extra}>{words}</text>'


def line(start, end, colour, extra=""):
    (x1, y1), (x2, y2) = [(x(gib), y(speed)) for gib, speed in (start, end)]
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{extra}/>'


def dot(at, colour, hollow=False):
    fill = "#fff" if hollow else colour
    return f'<circle cx="{x(at[0]):.1f}" cy="{y(at[1]):.1f}" r="5.5" fill="{fill}" stroke="{colour}" stroke-width="2"/>'


def chart():
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif" font-size="13">',
        "<title>Training speed against GPU memory, rullama-train and PyTorch</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="#fff"/>',
        text(24, 30, "Training speed against GPU memory, one NVIDIA H200", "start", "#222", ' font-size="16" font-weight="600"'),
        f'<circle cx="30" cy="48" r="5.5" fill="#555"/>{text(42, 53, "rullama-train, quantized base", "start")}',
        f'<circle cx="254" cy="48" r="5.5" fill="#fff" stroke="#555" stroke-width="2"/>'
        + text(266, 53, "PyTorch with PEFT", "start"),
        text(WIDTH - RIGHT, 53, "tokens per second; up and to the left is better", "end"),
    ]
    for speed in SPEEDS:
        parts.append(line((3, speed), (96, speed), "#e5e5e5"))
        parts.append(text(LEFT - 10, y(speed) + 4, f"{speed:,}".replace(",", " "), "end"))
    for gib in GIB:
        parts.append(text(x(gib), HEIGHT - BOTTOM + 22, gib))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "GiB of GPU memory, logarithmic"))
    for name, ours, theirs, colour, above in ROWS:
        parts.append(line(ours[0], theirs, colour, ' stroke-dasharray="2 4"'))
        if len(ours) > 1:
            parts.append(line(*ours, colour, ' stroke-width="2"'))
        parts += [dot(at, colour) for at in ours]
        parts.append(dot(theirs, colour, hollow=True))
        label_y = y(ours[0][1]) + (-12 if above else 22)
        parts.append(text(x(ours[0][0]), label_y, name, "middle", colour, ' font-weight="600"'))
    return "\n".join(parts + ["</svg>\n"])


Path(__file__).with_suffix(".svg").write_text(chart())
