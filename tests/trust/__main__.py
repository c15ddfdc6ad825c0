# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every attack, one after the other, and what came of it: python -m tests.trust [--sample] [--kinds A,B] [--seed N]

Each kind is a module of its own, which prints what it finds and ends with a row (tests/trust/table.py); the same
command with the seed of a row makes that attack again. 0 if nothing was lost and nothing left unclean. With --write
the rows go into configs/man/shown/trust.txt, of which journalkeeper-trust(7) shows the table.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from journalkeeper.probe.scratch_volume import OWN_MOUNTS
from tests.trust import table
from tests.trust.table import Row

TABLE: Final = Path(__file__).parents[2] / "configs/man/shown/trust.txt"


class Kind(NamedTuple):
    """One kind of attack: its module below tests.trust, and the words of the long form and of the sample.

    `seeded`: it takes --seed.
    """

    name: str
    module: str
    long: tuple[str, ...] = ()
    sample: tuple[str, ...] = ()
    seeded: bool = True

    def command(self, seed: int | None = None, *, sample: bool = False) -> str:
        """How to run it."""
        words = [f"python -m tests.trust.{self.module}", *(self.sample if sample else self.long)]
        return " ".join([*words, *(["--seed", f"{seed}"] if self.seeded and seed is not None else [])])


KINDS: Final = (
    Kind("powercuts", "powercuts", ("--points", "500"), ("--points", "12")),
    Kind("calls", "calls", (), ("--points", "3")),
    Kind("outages", "outages", ("--points", "60", "--hang", "30"), ("--points", "4", "--hang", "2")),
    Kind("limits", "limits", (), ("--release", "bookworm"), seeded=False),
    Kind("rights", "rights", (), ("--release", "bookworm"), seeded=False),
    Kind("soak", "soak", ("--minutes", "8"), ("--minutes", "0.5")),
    Kind("fuzz", "fuzz", ("--inputs", "1000000"), ("--inputs", "20000")),
    Kind("remote", "remote", ("--operations", "20000"), ("--operations", "600")),
    Kind("bus", "caller", ("--messages", "100000"), ("--messages", "2000")),
    Kind("races", "races", ("--rotations", "1000"), ("--rotations", "12")),
    Kind("threads", "threads", ("--seconds", "60"), ("--seconds", "3")),
)


def missing(kind: Kind) -> str | None:
    """Why a kind cannot be run; None if it can."""
    if importlib.util.find_spec(f"tests.trust.{kind.module}") is None:
        return f"there is no tests/trust/{kind.module}.py"
    return None


def run(kind: Kind, words: Sequence[str], seed: int) -> Row:
    """Run a kind as a process, in a mount namespace of its own; all that it prints is printed."""
    command = [*OWN_MOUNTS, sys.executable, "-m", f"tests.trust.{kind.module}", *words]
    command += ["--seed", f"{seed}"] if kind.seeded else []
    said = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stdout is not None
        for line in process.stdout:
            said += line
            sys.stdout.write(line)
            sys.stdout.flush()
    try:
        row = table.parse(said)
    except ValueError as error:
        sys.stdout.write(f"{kind.name}: exit {process.returncode}: {error}\n")
        return Row(kind.name, 0, 0, 1, 0.0, seed)
    ended = row.fine and process.returncode != 0
    return row._replace(kind=kind.name, unclean=row.unclean + ended)


def shown(rows: Iterable[Row], *, sample: bool) -> str:
    """The table for people, each row with the command that makes the same attack again."""
    kinds = {kind.name: kind for kind in KINDS}
    cells = [["kind", "points", "lost", "unclean", "outage", "command"]]
    for row in rows:
        if row.skipped:
            cells.append([row.kind, "-", "-", "-", "-", f"skipped: {row.skipped}"])
        else:
            numbers = [f"{row.points:,}", f"{row.lost}", f"{row.unclean}", f"{row.worst_outage_s:g} s"]
            cells.append([row.kind, *numbers, kinds[row.kind].command(row.seed, sample=sample)])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells) + "\n"


def written(text: str, rows: Iterable[Row]) -> str:
    """The table's file with these rows in place of the same kinds' of before, in KINDS' order; skipped ones stay."""
    lines = {line.partition("\t")[0]: line for line in text.splitlines()}
    commands = {kind.name: kind.command() for kind in KINDS}
    for row in rows:
        if not row.skipped:
            numbers = (f"{row.points}", f"{row.lost}", f"{row.unclean}", f"{row.worst_outage_s:g}")
            lines[row.kind] = "\t".join([row.kind, *numbers, commands[row.kind]])
    return "".join(f"{lines[kind.name]}\n" for kind in KINDS if kind.name in lines)


def main(argv: list[str] | None = None) -> int:
    """Run the kinds that were asked for; 0 if all of them are fine."""
    names = [kind.name for kind in KINDS]
    parser = argparse.ArgumentParser(prog="python -m tests.trust")
    parser.add_argument("--sample", action="store_true", help="a few points of each kind, for CI")
    parser.add_argument("--kinds", default=",".join(names), help="only these (%(default)s)")
    parser.add_argument("--seed", type=int, default=table.fresh_seed())
    parser.add_argument("--write", action="store_true", help=f"write the rows into {TABLE.name}")
    words = parser.parse_args(argv)
    chosen = words.kinds.split(",")
    if unknown := set(chosen) - set(names):
        parser.error(f"no such kind: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if words.sample and words.write:
        parser.error("the table is of the long form: --sample cannot be written into it")
    rows: list[Row] = []
    for kind in KINDS:
        if kind.name in chosen:
            sys.stdout.write(f"\n# {kind.name}, seed {words.seed}\n")
            reason = missing(kind)
            skipped = Row(kind.name, 0, 0, 0, 0.0, words.seed, reason or "")
            rows.append(skipped if reason else run(kind, kind.sample if words.sample else kind.long, words.seed))
    sys.stdout.write(f"\n{shown(rows, sample=words.sample)}")
    if words.write:
        TABLE.write_text(written(TABLE.read_text() if TABLE.exists() else "", rows))
    return 0 if all(row.fine for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
