"""Cuts a GGUF of ./families down: cut.py IN.gguf OUT.gguf LAYERS [KEY=VALUE ...] keeps the first LAYERS layers, or those of a list such as
0,3, and sets integer keys. With expert_count, only the first experts stay."""
import struct, sys

SIZES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
UINT32 = 4


def read(path):
    data = open(path, "rb").read()
    at = 0

    def take(form):
        nonlocal at
        values = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return values if len(values) > 1 else values[0]

    def text():
        nonlocal at
        n = take("Q")
        at += n
        return data[at - n : at]

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            of, n = take("I"), take("Q")
            return of, [value(of) for _ in range(n)]
        return take(SIZES[kind])

    assert take("4s") == b"GGUF"
    version, tensors, keys = take("I"), take("Q"), take("Q")
    metadata = {}
    for _ in range(keys):
        key = text().decode()
        kind = take("I")
        metadata[key] = (kind, value(kind))
    infos = []
    for _ in range(tensors):
        name, dims = text().decode(), take("I")
        shape = [take("Q") for _ in range(dims)]
        infos.append([name, shape, take("I"), take("Q")])
    start = (at + 31) // 32 * 32
    infos.sort(key=lambda info: info[3])
    ends = [info[3] for info in infos[1:]] + [len(data) - start]
    return version, metadata, [(n, s, t, data[start + o : start + e]) for (n, s, t, o), e in zip(infos, ends)]


def write(path, version, metadata, tensors):
    out = bytearray(b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata)))

    def text(value):
        return struct.pack("<Q", len(value)) + value

    def packed(kind, value):
        if kind == 8:
            return text(value)
        if kind == 9:
            of, values = value
            return struct.pack("<IQ", of, len(values)) + b"".join(packed(of, v) for v in values)
        return struct.pack("<" + SIZES[kind], value)

    for key, (kind, value) in metadata.items():
        out += text(key.encode()) + struct.pack("<I", kind) + packed(kind, value)
    at = 0
    for name, shape, kind, data in tensors:
        out += text(name.encode()) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, at)
        at += (len(data) + 31) // 32 * 32
    out += bytes(-len(out) % 32)
    for *_, data in tensors:
        out += data + bytes(-len(data) % 32)
    open(path, "wb").write(out)


if __name__ == "__main__":
    source, target, layers, *settings = sys.argv[1:]
    version, metadata, tensors = read(source)
    architecture = metadata["general.architecture"][1].decode()
    numbers = [int(n) for n in layers.split(",")] if "," in layers else range(int(layers))
    before = metadata[f"{architecture}.block_count"][1]
    for key, (kind, value) in metadata.items():
        by_layer = key.startswith(architecture) and not key.endswith("rope.dimension_sections")
        if by_layer and kind == 9 and len(value[1]) == before:
            metadata[key] = (kind, (value[0], [value[1][n] for n in numbers]))
    metadata[f"{architecture}.block_count"] = (UINT32, len(numbers))
    for setting in settings:
        key, value = setting.split("=")
        metadata[f"{architecture}.{key}"] = (UINT32, int(value))

    def renamed(name):
        """The name in the smaller file; None where the tensor is left out."""
        if not name.startswith("blk."):
            return name
        _, layer, rest = name.split(".", 2)
        return f"blk.{numbers.index(int(layer))}.{rest}" if int(layer) in numbers else None

    def fewer_experts(name, shape, kind, data):
        """The first `expert_count` experts, and their rows of the router."""
        if not name.endswith(("_exps.weight", ".ffn_gate_inp.weight")):
            return name, shape, kind, data
        count = metadata[f"{architecture}.expert_count"][1]
        return name, [*shape[:-1], count], kind, data[: len(data) * count // shape[-1]]

    write(target, version, metadata, [fewer_experts(renamed(t[0]), *t[1:]) for t in tensors if renamed(t[0])])
