"""Copies of the GGUF file with one mistake in them, which the comparison must find."""
import shutil
import struct

from gguf import GGUFReader

FAULTS = ("rotary", "merge", "end")


def strings(values):
    """-> a list of strings as GGUF stores it"""
    return b"".join(struct.pack("<Q", len(value.encode())) + value.encode() for value in values)


def reorder(path, key, change):
    """Changes the order of the strings in a list of the metadata."""
    field = GGUFReader(path).fields[key]
    values = field.contents()
    before = strings(values)
    change(values)
    with open(path, "r+b") as file:
        start = field.offset + file_header(field)
        file.seek(start)
        assert file.read(len(before)) == before, "the list is not where it should be"
        file.seek(start)
        file.write(strings(values))


def file_header(field):
    """-> bytes of a field before the first string of its list: name, its type, type and number of strings"""
    return 8 + len(field.name.encode()) + 4 + 4 + 8


def swap(i, j):
    def change(values):
        values[i], values[j] = values[j], values[i]
    return change


def rotary(path):
    """Other rotary frequencies: base 10 000 for 100 000."""
    fields = GGUFReader(path, "r+").fields
    fields["llama.rope.freq_base"].parts[-1][0] = 1e4


def merge(path):
    """The merge that makes " the" changes places with the last one."""
    merges = GGUFReader(path).fields["tokenizer.ggml.merges"].contents()
    reorder(path, "tokenizer.ggml.merges", swap(merges.index("Ġt he"), len(merges) - 1))


def end(path):
    """The tokens that end a turn and a text change places."""
    tokens = GGUFReader(path).fields["tokenizer.ggml.tokens"].contents()
    reorder(path, "tokenizer.ggml.tokens", swap(tokens.index("<|im_end|>"), tokens.index("<|endoftext|>")))


def broken(path, copy, fault):
    """Writes a copy with the fault of this name."""
    shutil.copy(path, copy)
    {"rotary": rotary, "merge": merge, "end": end}[fault](copy)
