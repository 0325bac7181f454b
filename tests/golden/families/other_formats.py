"""Quantizes a GGUF anew with other formats: other_formats.py LIBGGML-BASE.so IN.gguf OUT.gguf FEED_FORWARD

Matrices get the formats of TYPES in turn, shifted from layer to layer, so that each format is used forward and transposed. The
feed-forward is cut to FEED_FORWARD, and the head becomes the embedding matrix, so that the file is small.
"""
import ctypes, sys
import numpy as np
from gguf import GGMLQuantizationType as Type, GGUFReader
from gguf.quants import dequantize, quant_shape_to_byte_shape
from cut import UINT32, read, write

TYPES = [Type.Q2_K, Type.Q3_K, Type.IQ4_NL, Type.IQ4_XS, Type.MXFP4, Type.Q4_1, Type.Q5_1]
TABLE = Type.Q3_K       # of the embedding matrix, which is the head
MATRICES = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
SHIFT = 3

library, source, target, width = sys.argv[1:]
width = int(width)
ggml = ctypes.CDLL(library)
ggml.ggml_quantize_chunk.restype = ctypes.c_size_t


def quantized(values, kind):
    values = np.ascontiguousarray(values, np.float32)
    out = np.zeros(quant_shape_to_byte_shape(values.shape, kind), np.uint8)
    size = ggml.ggml_quantize_chunk(int(kind), values.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p),
                                    ctypes.c_int64(0), ctypes.c_int64(values.shape[0]), ctypes.c_int64(values.shape[1]), None)
    assert size == out.nbytes, (kind, size, out.nbytes)
    return out.tobytes()


def values(tensor):
    return np.array(dequantize(tensor.data, tensor.tensor_type), np.float32).reshape([int(n) for n in reversed(tensor.shape)])


def kind(name):
    if name == "token_embd.weight":
        return TABLE
    _, layer, module, _ = name.split(".")
    return TYPES[(MATRICES.index(module) + SHIFT * int(layer)) % len(TYPES)] if module in MATRICES else None


dense = {tensor.name: values(tensor) for tensor in GGUFReader(source).tensors}
version, metadata, tensors = read(source)
architecture = metadata["general.architecture"][1].decode()
metadata[f"{architecture}.feed_forward_length"] = (UINT32, width)
out = []
for name, shape, ty, data in tensors:
    if name == "output.weight":
        continue
    of = kind(name) if len(shape) == 2 else None
    if of is None:
        out.append((name, shape, ty, data))
        continue
    matrix = dense[name]
    matrix = matrix[:width] if ".ffn_gate." in name or ".ffn_up." in name else matrix[:, :width] if ".ffn_down." in name else matrix
    out.append((name, list(reversed(matrix.shape)), int(of), quantized(matrix, of)))
    print(name, of.name)
write(target, version, metadata, out)
