# SPDX-License-Identifier: LGPL-2.1-or-later
"""What starting journalkeeper costs, against starting the interpreter that it runs in.

    sudo python -m tests.bench.startup
    sudo python -m tests.bench.startup --command /opt/journalkeeper/bin/journalkeeper

Measures the installed command: one that was installed already, or this checkout installed
by pip, not editable, into a virtual environment over the distribution's libraries, which is
gone afterwards. Every start is a process of its own with warm caches.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from journalkeeper.probe.bed import bed
from tests.bench.figures import (
    REPOSITORY,
    Figure,
    at_most,
    in_turn,
    ms,
    need_a_bed,
    parser,
    ratio,
    run,
    show,
    spawn,
)

INSTALL = 'cd "$1" && . tests/setup.sh && make_program "$2"'


@contextmanager
def installed(given: str | None) -> Iterator[str]:
    """The path of an installed command: `given`, or one that is made for as long as this lasts."""
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="journalkeeper-bench-") as directory:
        run("sh", "-euc", INSTALL, "sh", REPOSITORY, f"{directory}/venv")
        yield f"{directory}/venv/bin/journalkeeper"


def interpreter(command: str) -> str:
    """The Python that a console script runs in, by its first line.

    Raises: RuntimeError where that names none.
    """
    first = Path(command).read_text().partition("\n")[0]
    if not first.startswith("#!/"):
        raise RuntimeError(f"{command}: no script that names its interpreter")
    return first[2:].strip()


def main() -> int:
    """Measure and print."""
    words = parser(__doc__)
    words.add_argument("--command", metavar="PATH", help="an installed journalkeeper (default: install this one)")
    words.add_argument("--rounds", type=int, default=41, help="that are timed (default: %(default)s)")
    asked = words.parse_args()
    need_a_bed(words)
    os.environ["PYTHONSAFEPATH"] = "1"  # never this checkout in place of what was installed
    with installed(asked.command) as command, bed() as place:
        archive = place.journald.rotate()
        python = interpreter(command)
        starts = {
            "python -c ''": (python, "-c", ""),
            "--version": (command, "--version"),
            "--help": (command, "--help"),
            "scan of one file": (command, "scan", "--no-pager", os.fspath(archive)),
            "scan -j of one file": (command, "scan", "-j", os.fspath(archive)),
            "plan of one file": (command, "plan", "--no-pager", os.fspath(archive)),
        }
        times = in_turn(asked.rounds, {name: functools.partial(spawn, *argv) for name, argv in starts.items()})
    bare = times["python -c ''"]
    figures = [
        *(Figure(what, ms(values)) for what, values in times.items()),
        at_most("--version / python -c ''", ratio(times["--version"], bare), 3),
        at_most("scan of one file / python -c ''", ratio(times["scan of one file"], bare), 12),
    ]
    note = f"{command} in {python}, {asked.rounds} rounds"
    show("Starting journalkeeper", [note], figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
