# SPDX-License-Identifier: LGPL-2.1-or-later
"""The configuration of who stays: its values are checked in a process of their own.

The one rule: what comes back is what validation.from_assignments says of the same lines, the
values or the error; what that took ends with the process. pydantic and the validators that
it builds keep 12 MiB resident in whoever imports them, and a service checks its
configuration once, when it starts.

What the two processes tell each other are Python literals.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from journalkeeper.config import Config, validation
from journalkeeper.config.files import Assignment
from journalkeeper.model.errors import ConfigError, KeeperError

if TYPE_CHECKING:
    from journalkeeper.config.validation import Assigned

CODE: Final = os.fspath(Path(__file__).parents[2])
PROGRAM: Final = "import sys; sys.path[:] = {path!r}; from journalkeeper.cli.config_process import main; main()"
TIMEOUT_S: Final = 300.0
"""At 150 IOPS and with nothing in memory it takes some 10 s."""


def from_assignments(assignments: Iterable[Assigned]) -> Config:
    """As validation.from_assignments, with nothing of pydantic left in this process.

    Raises: ConfigError; KeeperError, OSError (EAGAIN, ENOMEM) if no process can be had.
    """
    given = [Assignment(line.file, line.line, line.section, line.key, line.value, line.problem) for line in assignments]
    if not given:
        return validation.from_assignments(given)
    # From where this process imports, and no directory in which somebody happens to be.
    argv = [sys.executable, "-I", "-c", PROGRAM.format(path=[*filter(None, sys.path), CODE])]
    text = repr([tuple(line) for line in given])
    try:
        done = subprocess.run(argv, input=text.encode(), capture_output=True, check=False, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise KeeperError(f"the configuration was not checked within {TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        last = os.fsdecode(done.stderr).strip().rpartition("\n")[2]
        raise KeeperError(f"the configuration could not be checked: exit {done.returncode}: {last}")
    problems, values = ast.literal_eval(done.stdout.decode())
    if problems:
        raise ConfigError(problems)
    return Config._make(type(part)(*value) for part, value in zip(Config(), values, strict=True))


def main() -> None:
    """Read assignments, write what is wrong with them and the values."""
    problems: tuple[tuple[str, int, str, str], ...] = ()
    found = Config()
    try:
        found = validation.from_assignments(
            Assignment(*line) for line in ast.literal_eval(sys.stdin.buffer.read().decode())
        )
    except ConfigError as error:
        problems = error.problems
    sys.stdout.buffer.write(repr((problems, tuple(map(tuple, found)))).encode())
