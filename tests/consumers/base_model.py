"""transformers' model of a golden file, by the module of tests/golden that knows its family."""
import os
import sys

from gguf import GGUFReader

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden")
sys.path[:0] = [GOLDEN, os.path.join(GOLDEN, "families")]
import families  # noqa: E402
import families2  # noqa: E402
import gemma4  # noqa: E402


def architecture(path):
    return GGUFReader(path).fields["general.architecture"].contents()


def from_gguf(path, dtype):
    known = ((gemma4, ["gemma4"]), (families, families.CLASSES), (families2, families2.CLASSES))
    return next(module for module, names in known if architecture(path) in names).from_gguf(path, dtype)
