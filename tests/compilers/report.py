#!/usr/bin/env python3
"""Reads tables of compile-kernels, one per GPU, and prints failures, spills and registers; exits with 1 if a pipeline failed, or if one
spills more registers than an earlier report allows it.

report.py TABLE... [--most N] [--allow FILE] [--write FILE] [--page FILE]
"""
import argparse
import collections
import json
import pathlib
import re
import sys

# Names that the drivers give to what they count: RADV, ANV, NVK, Turnip, Honeykrisp.
REGISTERS = ["VGPRs", "Number of GPRs", "GPRs", "Full Registers", "Max live registers", "Registers"]
SPILLS = ["Spilled VGPRs", "Spill count", "Spills to memory", "Spills", "STP Count"]
SCRATCH = ["Scratch size", "Scratch Memory Size", "SLM Size", "Scratch", "Local memory size"]
WAVES = ["Subgroups per SIMD", "Max Waves Per Core", "Max warps/SM", "Threads per core"]
# A register of a lane, in values of 32 bits; RADV counts spills of both kinds.


def read(path):
    rows, head = [], []
    for line in pathlib.Path(path).read_text(errors="replace").splitlines():
        if line.startswith("#"):
            head.append(line[2:])
            continue
        fields = line.split("\t")
        if len(fields) < 3:
            continue
        name, tier, verdict, *rest = fields
        rows.append((name, tier, verdict, dict(f.split("=", 1) for f in rest if "=" in f)))
    return head, rows


def first(counts, names):
    # ANV compiles a kernel for several widths, and NVK counts per stage: the largest is what matters.
    values = [float(v) for k, v in counts.items() if k.split(":", 1)[-1] in names]
    return max(values, default=0)


def registers(counts):
    # Turnip counts registers of four values.
    return max(first(counts, REGISTERS), 4 * first(counts, ["Registers used"]))


# Kernels that fill a training step, by the start of their names, and sizes that are part of them.
HOT = [
    ("product forward, Q4_K, f32", "linear/tiled.forward q4_k ", ["HALF=0"]),
    ("product forward, Q4_K, f16", "linear/tiled.forward q4_k ", ["HALF=1"]),
    ("product backward, Q4_K, f16", "linear/tiled.backward q4_k ", ["HALF=1"]),
    ("product forward, Q6_K, f16", "linear/tiled.forward q6_k ", ["HALF=1"]),
    ("product forward, Q4_K, 16×16", "linear/coop16.forward q4_k ", []),
    ("attention forward, heads of 256, f16", "attention/tiled.forward ", ["HALF=1", "HEAD4=64"]),
    ("attention backward of queries, heads of 256, f16", "attention/tiled.backward_q ", ["HALF=1", "HEAD4=64"]),
    ("attention backward of keys, heads of 256, f16", "attention/tiled.backward_k ", ["HALF=1", "HEAD4=64"]),
    ("gradients of A and B", "lora/tiled.", []),
    ("one token, Q4_K", "matvec/plain.forward q4_k ", []),
]


def hot(rows):
    """Registers, waves, workgroup memory and spills of the hottest kernels: of the size of each that spills or takes the most."""
    cells = {}
    for title, start, sizes in HOT:
        found = [c for n, _, v, c in rows if v == "ok" and n.startswith(start) and all(s in n.split() for s in sizes)]
        worst = max(found, key=lambda c: (first(c, SPILLS), registers(c)), default=None)
        if worst is None:
            cells[title] = "–"
            continue
        spills, waves = first(worst, SPILLS), first(worst, WAVES)
        memory = int(worst["workgroup_bytes"]) / 1024
        cells[title] = f"{registers(worst):.0f}" + (f" / {waves:.0f}" if waves else "")
        cells[title] += (f", {memory:.1f} KiB" if memory else "") + (f", {spills:.0f} spilled" if spills else "")
    return cells


def page(kept):
    """A table of the hottest kernels on every GPU that is kept."""
    gpus = [gpu for _, gpu in sorted(kept.items())]
    lines = ["| kernel | " + " | ".join(gpu["device"] for gpu in gpus) + " |", "|---" * (len(gpus) + 1) + "|"]
    lines += [f"| {title} | " + " | ".join(gpu["hot"][title] for gpu in gpus) + " |" for title, _, _ in HOT]
    return "\n".join(lines) + "\n"


def replace(path, text):
    start, end = "<!-- compilers: generated -->\n", "<!-- end -->"
    page = pathlib.Path(path).read_text()
    before, rest = page.split(start, 1)
    pathlib.Path(path).write_text(before + start + "\n" + text + "\n" + end + rest.split(end, 1)[1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tables", nargs="+")
    parser.add_argument("--most", type=int, default=8)
    parser.add_argument("--allow")
    parser.add_argument("--write")
    parser.add_argument("--page")
    args = parser.parse_args()
    allowed = json.loads(pathlib.Path(args.allow).read_text()) if args.allow else None
    found, bad = {}, 0
    for path in args.tables:
        head, rows = read(path)
        told = dict(h.split("\t", 1) for h in head if "\t" in h)
        print(f"== {pathlib.Path(path).stem}: {'; '.join(h.split(chr(9), 1)[-1] for h in head[:3])}")
        tiers = collections.OrderedDict()
        for name, tier, verdict, counts in rows:
            tiers.setdefault(tier, []).append((name, verdict, counts))
        print(f"{'tier':9} {'pipelines':>9} {'failed':>6} {'spill':>6} {'scratch':>7} {'registers, most':>15} {'waves, least':>12} {'seconds':>8} {'slowest':>8}")
        own = {}
        for tier, kernels in sorted(tiers.items()):
            ok = [k for k in kernels if k[1] == "ok"]
            spill = [k for k in ok if first(k[2], SPILLS) > 0]
            scratch = [k for k in ok if first(k[2], SCRATCH) > 0]
            regs = max((registers(k[2]) for k in ok), default=0)
            waves = min((first(k[2], WAVES) for k in ok), default=0)
            seconds = [float(k[2]["seconds"]) for k in ok]
            print(f"{tier:9} {len(kernels):9} {len(kernels) - len(ok):6} {len(spill):6} {len(scratch):7} {regs:15.0f} {waves:12.0f} {sum(seconds):8.1f} {max(seconds, default=0):8.2f}")
            spills = {name: int(first(counts, SPILLS)) for name, _, counts in sorted(spill)}
            own[tier] = {"pipelines": len(kernels), "failed": len(kernels) - len(ok), "spills": spills}
        name = pathlib.Path(path).stem
        # Debian's revision says nothing; which weight formats were left out does.
        driver = re.sub(r"-\d+$", "", told.get("driver", ""))
        formats = {word for row in rows for word in row[0].split(" ")[1].split("+") if word}
        if len(formats) < 8:
            driver += ", weights in " + " and ".join(name.upper() for name in sorted(formats))
        # NVK's GPUs behind the shim have no name.
        device = told.get("device", name).strip().replace("NVK", f"NVIDIA {name.capitalize()} (NVK)")
        found[name] = {"device": device, "driver": driver, "hot": hot(rows), "kernels": own}
        failures = [(n, v) for n, _, v, _ in rows if v != "ok"]
        for name, verdict in failures[: args.most]:
            print(f"  failed: {name}: {verdict}")
        bad += len(failures) if allowed is None else 0
        spilled = sorted(((first(c, SPILLS), first(c, SCRATCH), n) for n, _, v, c in rows if v == "ok"), reverse=True)
        for spills, scratch, name in spilled[: args.most]:
            if spills or scratch:
                print(f"  {spills:5.0f} spilled, {scratch:6.0f} scratch: {name}")
    if allowed is not None:
        for gpu, of_gpu in found.items():
            for tier, counts in of_gpu["kernels"].items():
                known = allowed.get(gpu, {}).get("kernels", {}).get(tier, {})
                worse = [f"{name}: spills {registers}, at most {most} before" for name, registers in counts["spills"].items()
                         if registers > (most := known.get("spills", {}).get(name, 0))]
                if counts["failed"] > known.get("failed", 0):
                    worse.append(f"{counts['failed']} failed, at most {known.get('failed', 0)} before")
                bad += len(worse)
                for line in worse:
                    print(f"WORSE {gpu} {tier}: {line}")
    if args.write:
        path = pathlib.Path(args.write)
        kept = json.loads(path.read_text()) if path.exists() else {}
        kept = {**kept, **found}
        path.write_text(json.dumps(kept, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
        if args.page:
            replace(args.page, page(kept))
    sys.exit(1 if bad else 0)


main()
