# SPDX-License-Identifier: LGPL-2.1-or-later
"""All attacks in their long form, one after the other: python -m tests.trust [--write]

Each kind is a module, which prints what it finds and ends with a row. The command of a row repeats it. The exit status
is 0 if nothing was lost and nothing is wrong. --write puts the rows into configs/man/shown/trust.txt, from which
journalkeeper-trust(7) has its table. The sample of a kind is run by test_suite.py.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

from tests.trust import table
from tests.trust.table import Row

TABLE: Final = Path(__file__).parents[2] / "configs/man/shown/trust.txt"


class Kind(NamedTuple):
    """One kind of attack: its module below tests.trust, and its words in the long form and in the sample."""

    module: str
    long: str
    sample: str

    @property
    def command(self) -> str:
        """The command of the long form."""
        return f"python -m tests.trust.{self.module} {self.long}".rstrip()


KINDS: Final = {
    "powercuts": Kind("powercuts", "--points 500", "--points 12"),
    "calls": Kind("calls", "--points 100", "--points 3"),
    "outages": Kind("outages", "--points 60 --hang 30", "--points 4 --hang 2"),
    "remote": Kind("remote", "--operations 20000", "--operations 600"),
    "bus": Kind("caller", "--messages 100000", "--messages 2000"),
}


def run(kind: Kind) -> Row:
    """Run a kind as a process, and print what it prints. Return its row; one with a trouble if it printed none."""
    table.say(f"\n# {kind.command}")
    command = [sys.executable, "-m", f"tests.trust.{kind.module}", *kind.long.split()]
    printed = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stdout is not None
        for line in process.stdout:
            printed += line
            table.say(line.rstrip("\n"))
    try:
        return table.parse(printed)
    except ValueError as error:
        table.say(f"{kind.module}: exit status {process.returncode}: {error}")
        return Row(0, 0, 1, 0.0, 0)


def write(rows: dict[str, Row]) -> None:
    """Put the rows into the table of the man page, in place of the rows of the same kinds."""
    lines = {line.partition("\t")[0]: line for line in TABLE.read_text().splitlines()}
    for name, row in rows.items():
        if not row.skipped:
            numbers = (f"{row.points}", f"{row.lost}", f"{row.unclean}", f"{row.outage_s:g}")
            lines[name] = "\t".join([name, *numbers, KINDS[name].command])
    TABLE.write_text("".join(f"{lines[name]}\n" for name in KINDS if name in lines))


def main() -> int:
    """Run all kinds. Return 0 if all rows are fine, else 1."""
    words = argparse.ArgumentParser(prog="python -m tests.trust")
    words.add_argument("--write", action="store_true", help=f"write the rows into {TABLE.name}")
    asked = words.parse_args()
    rows = {name: run(kind) for name, kind in KINDS.items()}
    for name, row in rows.items():
        table.say(f"{name}: {row}")
    if asked.write:
        write(rows)
    return 0 if all(row.fine for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
