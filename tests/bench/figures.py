# SPDX-License-Identifier: LGPL-2.1-or-later
# ruff: noqa: T201 - a bench prints
"""The parts that all benches share: options, commands, ratios, and one plain table.

What is compared is measured in the same run and in turn, so that a busy machine is as busy for one as for the other. A
ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from journalkeeper import __version__
from journalkeeper.probe.scratch_volume import isolate, run
from tests.volumes import why_no_bed

REPOSITORY = Path(__file__).parents[2]
MIB = 1 << 20

T = TypeVar("T")
U = TypeVar("U")


class Figure(NamedTuple):
    """One row: what was measured, the figure, its limit, and whether the limit is met (None without a limit)."""

    what: str
    measured: str
    asked: str = ""
    met: bool | None = None


def at_most(what: str, value: float, limit: float) -> Figure:
    """Return the row of a value that must be `limit` or less."""
    return Figure(what, f"{value:.3g}", f"<= {limit:g}", value <= limit)


def at_least(what: str, value: float, limit: float) -> Figure:
    """Return the row of a value that must be `limit` or more."""
    return Figure(what, f"{value:.3g}", f">= {limit:g}", value >= limit)


def count_is(what: str, value: int, wanted: int) -> Figure:
    """Return the row of a count that must be `wanted`."""
    return Figure(what, str(value), str(wanted), value == wanted)


def mib(size_bytes: float) -> str:
    """Return a size in MiB with its unit."""
    return f"{size_bytes / MIB:.2f} MiB"


def ms(times_s: Sequence[float]) -> str:
    """Return the median and the least of some times, in ms."""
    return f"{statistics.median(times_s) * 1000:.1f} ms (least {min(times_s) * 1000:.1f})"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of the rounds' ratios."""
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def spawn(*argv: str) -> None:
    """Run a command and discard its output.

    Raises: CalledProcessError.
    """
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


def engine(*words: str) -> list[str]:
    """Return the command line of the journalkeeper that is installed for this interpreter, or of this checkout's."""
    script = Path(sys.executable).with_name("journalkeeper")
    return [os.fspath(script), *words] if script.exists() else [sys.executable, "-m", "journalkeeper", *words]


def versions() -> str:
    """Return the versions of the software and the load of the machine."""
    return (
        f"journalkeeper {__version__}, Python {platform.python_version()}, Linux {platform.release()}, "
        f"systemd {_word(1, 'systemctl', '--version')}, btrfs-progs {_word(1, 'btrfs', '--version').lstrip('v')}, "
        f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}"
    )


def _word(number: int, *argv: str) -> str:
    return run(*argv).split()[number]


def show(title: str, notes: Sequence[str], figures: Sequence[Figure]) -> None:
    """Print the table: a row for each figure, with its limit and whether that is met."""
    print(f"{title}\n{versions()}")
    for note in notes:
        print(f"  {note}")
    width = max(len(figure.what) for figure in figures)
    print(f"\n{'':{width}}  {'measured':>14}  {'asked':>10}")
    for figure in figures:
        verdict = {True: "met", False: "MISSED", None: ""}[figure.met]
        print(f"{figure.what:{width}}  {figure.measured:>14}  {figure.asked:>10}  {verdict}".rstrip())


class Option(NamedTuple):
    """An option of a bench: its default and its help text. `kind` converts a value, by default the default's type.

    `choices` are the permitted values.
    """

    default: Any
    what: str
    kind: Callable[[str], Any] | None = None
    choices: Collection[str] | None = None


def add_options(words: argparse.ArgumentParser, options: Mapping[str, Option]) -> None:
    """Add options by their names."""
    for name, (default, what, kind, choices) in options.items():
        known = "" if default in (None, "") else " (default: %(default)s)"
        words.add_argument(f"--{name}", type=kind or type(default), default=default, choices=choices, help=what + known)


def side_by_side(names: Iterable[T], work: Callable[[T], U], jobs: int | None = None) -> dict[T, U]:
    """Return the result of `work` for each of `names`, which run all at once, or `jobs` at a time."""
    names = list(names)
    with ThreadPoolExecutor(jobs or len(names)) as pool:
        return dict(zip(names, pool.map(work, names), strict=True))


def parser(doc: str | None, options: Mapping[str, Option] | None = None) -> argparse.ArgumentParser:
    """Return a parser of these options whose --help shows the module's docstring."""
    words = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(words, options or {})
    return words


def start(words: argparse.ArgumentParser, missing: Callable[[], str | None] = lambda: None) -> argparse.Namespace:
    """Return the parsed options, in a mount namespace of our own.

    Exit with 1 and the reason if no scratch volume can be made, or if `missing` returns a reason.
    """
    asked = words.parse_args()
    if reason := why_no_bed() or missing():
        words.exit(1, f"{words.prog}: {reason}\n")
    isolate()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed command is compiled, and so should ours be
    return asked
