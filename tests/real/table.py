"""The table of comparisons that tests/real/run prints."""
import contextlib
import sys
import time

COLUMNS = ("what", "program", "PyTorch", "difference", "limit", "")


def text(value):
    return f"{value:.9f}" if isinstance(value, float) else str(value)


class Table:
    """Rows of a comparison, printed as they come. `faults` counts those beyond their limit."""

    def __init__(self):
        self.rows, self.faults, self.started = [], 0, time.monotonic()

    def row(self, what, program, pytorch, difference, limit, good):
        """Adds a row. `good`: whether the comparison holds."""
        self.faults += not good
        cells = [what, text(program), text(pytorch), text(difference), text(limit), "ok" if good else "RED"]
        self.rows.append(cells)
        print(f"[{time.monotonic() - self.started:4.0f} s] {' | '.join(cells)}", flush=True)

    def relative(self, what, program, pytorch, limit):
        """Compares two numbers by their relative difference."""
        difference = abs(program - pytorch) / abs(pytorch)
        self.row(what, program, pytorch, f"{difference:.1e}", f"{limit:.0e}", difference <= limit)

    def most(self, what, difference, limit, program="", pytorch=""):
        """Compares a difference that was computed elsewhere with its limit."""
        self.row(what, program, pytorch, f"{difference:.1e}", f"{limit:.0e}", difference <= limit)

    def same(self, what, program, pytorch):
        """Compares two values that must be equal."""
        self.row(what, program, pytorch, "none" if program == pytorch else "different", "none", program == pytorch)

    @contextlib.contextmanager
    def section(self, name, failure):
        """Inside, an error of the kind `failure` is a red row, and the comparison goes on behind the section."""
        try:
            yield
        except failure as error:
            self.row(name, str(error).strip().splitlines()[-1], "", "failed", "", False)

    def print(self):
        """Prints all rows as Markdown."""
        print(f"\n| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
        for row in self.rows:
            print(f"| {' | '.join(row)} |")
        print(f"\n{len(self.rows)} comparisons, {self.faults} red, {time.monotonic() - self.started:.0f} s", flush=True)

    def finish(self):
        """Prints the table and ends the process: 1 if a row is red."""
        self.print()
        sys.exit(bool(self.faults))
