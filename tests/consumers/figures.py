"""Figures of a script, printed with their limits. `faults()` counts those beyond them."""
import numpy as np

_faults = 0


def faults():
    return _faults


def judge(holds, text):
    """Prints `text`, and counts a fault where it does not hold."""
    global _faults
    _faults += not holds
    print(text + ("" if holds else "  FAIL"))


def figure(what, found, most):
    judge(found <= most, f"{what}: {found:.1e} (at most {most:.0e})")


def different(what, found, least):
    judge(found >= least, f"{what}: {found:.1e} (at least {least:.0e})")


def relative(expected, found):
    """Norm of the difference over the norm, of arrays."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
