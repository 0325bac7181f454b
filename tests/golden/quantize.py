"""What llama.cpp's quantizers lose, without importance matrix: writes quantize.json, which tests/quantize.rs holds ours to.

    pip install llama-cpp-python==0.3.36 gguf==0.19.0
    python quantize.py [FOLDER OF libggml-base.so]

`ggml_quantize_chunk` is what llama-quantize calls. Its bytes are decoded by gguf-py; a figure is the root mean square of
the difference over the root mean square of the values. The test makes the same matrices.
"""

import ctypes
import json
import pathlib
import sys

import gguf
import numpy as np

HERE = pathlib.Path(__file__).parent
TYPES = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"]
ROWS, COLS = 128, 1024


def library():
    if len(sys.argv) > 1:
        folder = pathlib.Path(sys.argv[1])
    else:
        import llama_cpp

        folder = pathlib.Path(llama_cpp.__file__).parent / "lib"
    found = ctypes.CDLL(str(next(folder.glob("libggml-base.*"))))
    found.ggml_quantize_chunk.restype = ctypes.c_size_t
    found.ggml_quantize_chunk.argtypes = [
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_void_p,
    ]
    return found


def gaussian(seed):
    """Sums of twelve 16-bit numbers, as f32: exact everywhere, and normal but for the far tails."""
    bits = np.arange(ROWS * COLS * 3, dtype=np.uint64) + np.uint64(seed << 32)
    with np.errstate(over="ignore"):  # splitmix64
        bits = bits * np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bits ^= bits >> np.uint64(31)
    sums = bits.view(np.uint16).reshape(-1, 12).astype(np.int64).sum(1) - 6 * 65535
    return (sums / 65536).astype(np.float32).reshape(ROWS, COLS)


def matrices():
    normal = gaussian(1)
    yield "gaussian", normal
    # Heavy tails, rows of very different size, and a mean.
    yield "cubed", normal * normal * normal
    yield "rows", normal * np.exp2(np.arange(ROWS, dtype=np.float32) % 16 - 12)[:, None]
    yield "shifted", normal * np.float32(0.02) + np.float32(0.05)
    reader = gguf.GGUFReader(HERE / "../../models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf")
    for tensor in reader.tensors:
        if tensor.name in ("token_embd.weight", "blk.0.ffn_up.weight", "per_layer_model_proj.weight"):
            yield tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    # Trained values that no quantizer has seen: matrices of an earlier tiny model before it was quantized, of its embeddings 512 rows.
    for path in sorted(HERE.glob("../fixtures/quantize/*.bf16")):
        bits = np.fromfile(path, np.uint16).astype(np.uint32) << 16
        yield path.name, bits.view(np.float32).reshape(-1, 256)


def main():
    ggml = library()
    figures = {}
    for name, values in matrices():
        values = np.ascontiguousarray(values)
        rows, cols = values.shape
        figures[name] = {}
        for type_name in TYPES:
            kind = gguf.GGMLQuantizationType[type_name]
            block, size = gguf.GGML_QUANT_SIZES[kind]
            out = np.zeros((rows, cols // block * size), dtype=np.uint8)
            ggml.ggml_quantize_chunk(int(kind), values.ctypes.data, out.ctypes.data, 0, rows, cols, None)
            decoded = gguf.quants.dequantize(out, kind).astype(np.float64)
            error = np.sqrt(((decoded - values) ** 2).mean() / (values.astype(np.float64) ** 2).mean())
            figures[name][type_name] = float(error)
    (HERE / "quantize.json").write_text(json.dumps(figures, indent=1) + "\n")


main()
