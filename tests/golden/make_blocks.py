# Writes blocks.gguf: random blocks of each supported format, what gguf-py makes of them, and a metadata
# value of each type. Run: pip install gguf==0.19.0 numpy==2.4.6 && python make_blocks.py blocks.gguf
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T, GGUFValueType as V


class Later(int):
    """A format that gguf-py does not know yet."""

    name = "Q2_0"


Q2_0 = Later(42)
gguf.constants.GGML_QUANT_SIZES[Q2_0] = (64, 18)


def later(blocks, kind):
    """ggml-quants.c `dequantize_row_q1_0` and `dequantize_row_q2_0`, which gguf-py 0.19 lacks."""
    d, bits = blocks[:, :2].copy().view(np.float16).astype(np.float32), 1 if kind == T.Q1_0 else 2
    codes = blocks[:, 2:, None] >> np.arange(0, 8, bits, dtype=np.uint8) & np.uint8(2**bits - 1)
    codes = codes.reshape(len(blocks), -1).astype(np.float32)
    return np.where(codes == 1, d, -d) if bits == 1 else (codes - 1) * d


# (format, bytes of a block, where its f16 scales lie)
FORMATS = [
    (T.F32, 4, []),
    (T.F16, 2, []),
    (T.BF16, 2, []),
    (T.Q4_0, 18, [0]),
    (T.Q5_0, 22, [0]),
    (T.Q8_0, 34, [0]),
    (T.Q4_K, 144, [0, 2]),
    (T.Q5_K, 176, [0, 2]),
    (T.Q6_K, 210, [208]),
    (T.Q4_1, 20, [0, 2]),
    (T.Q5_1, 24, [0, 2]),
    (T.Q2_K, 84, [80, 82]),
    (T.Q3_K, 110, [108]),
    (T.IQ4_NL, 18, [0]),
    (T.IQ4_XS, 136, [0]),
    (T.MXFP4, 17, []),
    (T.IQ2_XXS, 66, [0]),
    (T.IQ2_XS, 74, [0]),
    (T.IQ2_S, 82, [0]),
    (T.IQ3_XXS, 98, [0]),
    (T.IQ3_S, 110, [0]),
    (T.IQ1_S, 50, [0]),
    (T.IQ1_M, 56, []),
    (T.TQ1_0, 54, [52]),
    (T.TQ2_0, 66, [64]),
    (T.NVFP4, 36, []),
    (T.Q1_0, 18, [0]),
    (Q2_0, 18, [0]),
]

# Normal, subnormal (as Q6_K scales of small weights are) and negative.
HALVES = [0x2345, 0x0123, 0xA7FF]
# For the formats that came later also the smallest, the largest, and both zeros.
MORE_HALVES = HALVES + [0x0001, 0x7BFF, 0xFBFF, 0x0000, 0x8000]
LATER = {kind for kind, *_ in FORMATS[11:]}
# Subnormal powers of two, ordinary ones, and the largest; 255 would be NaN by E8M0, and is a number in ggml.
EXPONENTS = [0, 1, 2, 100, 121, 128, 252, 255]
# Floats of 8 bits without a sign: zero, subnormal, ordinary, the largest, NaN (0 in ggml), and with the bit that is no sign.
FLOATS = np.array([*range(28), 0x7E, 0x7F, 0x80, 0xFF], dtype=np.uint8).reshape(8, 4)

random = np.random.default_rng(1)
writer = gguf.GGUFWriter(sys.argv[1], "golden")
for name, value, kind, element in [
    ("u8", 200, V.UINT8, None),
    ("i8", -100, V.INT8, None),
    ("u16", 60000, V.UINT16, None),
    ("i16", -30000, V.INT16, None),
    ("u32", 4000000000, V.UINT32, None),
    ("i32", -2000000000, V.INT32, None),
    ("u64", 18000000000000000000, V.UINT64, None),
    ("i64", -9000000000000000000, V.INT64, None),
    ("f32", 0.1, V.FLOAT32, None),
    ("f64", 0.1, V.FLOAT64, None),
    ("bool", True, V.BOOL, None),
    ("string", "Grüße ▁", V.STRING, None),
    ("u8s", [0, 200], V.ARRAY, V.UINT8),
    ("i8s", [-100, 100], V.ARRAY, V.INT8),
    ("u16s", [0, 60000], V.ARRAY, V.UINT16),
    ("i16s", [-30000, 1], V.ARRAY, V.INT16),
    ("u32s", [0, 4000000000], V.ARRAY, V.UINT32),
    ("i32s", [-2000000000, 1], V.ARRAY, V.INT32),
    ("u64s", [0, 18000000000000000000], V.ARRAY, V.UINT64),
    ("i64s", [-9000000000000000000, 1], V.ARRAY, V.INT64),
    ("f32s", [0.5, -1.0], V.ARRAY, V.FLOAT32),
    ("f64s", [0.1, -1.0], V.ARRAY, V.FLOAT64),
    ("bools", [True, False], V.ARRAY, V.BOOL),
    ("strings", ["", "▁a", "\n"], V.ARRAY, V.STRING),
]:
    writer.add_key_value("test." + name, value, kind, sub_type=element)

for kind, size, scales in FORMATS:
    halves = MORE_HALVES if kind in LATER else HALVES
    count = 24 if size <= 4 else len(halves)
    blocks = random.integers(0, 256, (count, size), dtype=np.uint8)
    if size <= 4:  # values themselves: finite, with a subnormal and both zeros
        top = {T.F32: 0x3F, T.F16: 0x37, T.BF16: 0x3F}[kind]
        blocks[:, -1] = (blocks[:, -1] & 0x80) | (top & (blocks[:, -1] | 0x30))
        blocks[0], blocks[1], blocks[2] = 0, 0, 0
        blocks[1, -1] = 0x80
        blocks[2, 0] = 3
    for at in scales:
        blocks[:, at : at + 2] = np.array(halves, dtype="<u2").view(np.uint8).reshape(-1, 2)
    if kind == T.MXFP4:
        blocks[:, 0] = EXPONENTS
    if kind == T.NVFP4:
        blocks[:, :4] = FLOATS
    if kind == T.IQ1_M:  # four bits of its scale above each twelve bits of sub-scales
        for i, word in enumerate(blocks[:, 48:].T[1::2]):
            word[:] = word & 15 | (np.array(halves, dtype=np.uint16) >> 4 * i & 15).astype(np.uint8) << 4
    row = blocks.reshape(1, -1)
    if kind in (T.Q1_0, Q2_0):
        values = later(blocks, kind)
    else:
        values = gguf.dequantize(row.view(np.float32) if kind == T.F32 else row.view(np.float16) if kind == T.F16 else row, kind)
    assert np.isfinite(values).all() or kind == T.MXFP4
    writer.add_tensor(kind.name, row, raw_dtype=kind)
    writer.add_tensor(kind.name + ".values", values.astype(np.float32).reshape(-1))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
