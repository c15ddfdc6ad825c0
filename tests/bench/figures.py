# SPDX-License-Identifier: LGPL-2.1-or-later
# ruff: noqa: T201 - a bench prints
"""What the benches share: things that are timed in turn, ratios of them, and one plain table.

What is compared is measured in the same run and in turn, round after round,
so that a busy machine is as busy for one as for the other; a ratio is the median of the
rounds' ratios.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from journalkeeper import __version__
from journalkeeper.probe.scratch_volume import isolate
from tests.volumes import why_no_bed

REPOSITORY = Path(__file__).parents[2]
MIB = 1 << 20

T = TypeVar("T")
U = TypeVar("U")


class Figure(NamedTuple):
    """One row: what was measured, the figure, what was asked of it, and whether it is that; None where nothing was."""

    what: str
    measured: str
    asked: str = ""
    met: bool | None = None


def at_most(what: str, value: float, limit: float) -> Figure:
    """A ratio that has to be `limit` or less."""
    return Figure(what, f"{value:.3g}", f"<= {limit:g}", value <= limit)


def at_least(what: str, value: float, limit: float) -> Figure:
    """A ratio that has to be `limit` or more."""
    return Figure(what, f"{value:.3g}", f">= {limit:g}", value >= limit)


def count_is(what: str, value: int, wanted: int) -> Figure:
    """A count that has to be `wanted`."""
    return Figure(what, str(value), str(wanted), value == wanted)


def mib(size_bytes: float) -> str:
    """A size for people."""
    return f"{size_bytes / MIB:.2f} MiB"


def ms(times_s: Sequence[float]) -> str:
    """Times for people: their median and the least of them."""
    return f"{statistics.median(times_s) * 1000:.1f} ms (least {min(times_s) * 1000:.1f})"


def timed(work: Callable[[], object]) -> float:
    """How many seconds `work` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def run(*argv: str | os.PathLike[str], **environment: str) -> str:
    """Run a command and return what it printed; its complaints are seen.

    Raises: CalledProcessError.
    """
    environment = {**os.environ, **environment}
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, env=environment)
    return os.fsdecode(done.stdout)


def spawn(*argv: str) -> None:
    """Run a command with nothing around it that takes time, its output thrown away.

    Raises: RuntimeError if it fails.
    """
    away = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    process = os.posix_spawnp(argv[0], argv, os.environ, file_actions=away)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if status:
        raise RuntimeError(f"{' '.join(argv[:4])}: exit {status}")


def engine(*words: str) -> list[str]:
    """The command line of the journalkeeper that is installed for this interpreter, or of this checkout's."""
    script = Path(sys.executable).with_name("journalkeeper")
    return [os.fspath(script), *words] if script.exists() else [sys.executable, "-m", "journalkeeper", *words]


def versions() -> str:
    """What was measured on what."""
    return (
        f"journalkeeper {__version__}, Python {platform.python_version()}, Linux {platform.release()}, "
        f"systemd {_word(1, 'systemctl', '--version')}, btrfs-progs {_word(1, 'btrfs', '--version').lstrip('v')}, "
        f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}"
    )


def _word(number: int, *argv: str) -> str:
    return run(*argv).split()[number]


def show(title: str, notes: Sequence[str], figures: Sequence[Figure]) -> None:
    """Print the table: what was measured, what came out, what was asked for."""
    print(f"{title}\n{versions()}")
    for note in notes:
        print(f"  {note}")
    width = max(len(figure.what) for figure in figures)
    print(f"\n{'':{width}}  {'measured':>14}  {'asked':>10}")
    for figure in figures:
        verdict = {True: "met", False: "MISSED", None: ""}[figure.met]
        print(f"{figure.what:{width}}  {figure.measured:>14}  {figure.asked:>10}  {verdict}".rstrip())


class Option(NamedTuple):
    """An option of a bench: its default and what it is; a value is of the default's type, or what `kind` makes of it.

    `many`: it takes several values; `choices`: only these.
    """

    default: Any
    what: str
    kind: Callable[[str], Any] | None = None
    many: bool = False
    choices: Collection[str] | None = None


def add_options(words: argparse.ArgumentParser, options: Mapping[str, Option]) -> None:
    """These, by their names; one that is False is a switch."""
    for name, (default, what, kind, many, choices) in options.items():
        if default is False:
            words.add_argument(f"--{name}", action="store_true", help=what)
            continue
        known = "" if default in (None, "") else " (default: %(default)s)"
        nargs = "+" if many else None
        words.add_argument(
            f"--{name}", type=kind or type(default), default=default, nargs=nargs, choices=choices, help=what + known
        )


def side_by_side(names: Iterable[T], work: Callable[[T], U], jobs: int | None = None) -> dict[T, U]:
    """What `work` comes to for each of `names`, at once, or so many at a time."""
    names = list(names)
    with ThreadPoolExecutor(jobs or len(names)) as pool:
        return dict(zip(names, pool.map(work, names), strict=True))


def parser(doc: str | None, options: Mapping[str, Option] | None = None) -> argparse.ArgumentParser:
    """A parser of these options whose --help is the module's docstring."""
    words = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(words, options or {})
    return words


def need_a_bed(words: argparse.ArgumentParser) -> None:
    """Go on in a mount namespace of our own, or end with the reason where no bed can be made."""
    if reason := why_no_bed():
        words.exit(1, f"{words.prog}: {reason}\n")
    isolate()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed command is compiled, and so should ours be
