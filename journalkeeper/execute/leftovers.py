# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a killed run left behind, removed by the next.

The one rule: only our own names, and only while we hold the lock. A leftover is a copy
that was not exchanged yet or an original that was: in both cases the journal's own name
leads to a whole file (execute.rewrite), so nothing is lost with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from journalkeeper import opening
from journalkeeper.journald.names import is_leftover


def remove(paths: Iterable[str]) -> list[str]:
    """Unlink these temporary files; a sentence about each for the report."""
    said: list[str] = []
    for path in paths:
        directory, _, name = path.rpartition("/")
        if not is_leftover(name):
            raise ValueError(f"{path} is not a temporary file of ours")
        try:
            with opening.directory(directory) as fd:
                os.unlink(name, dir_fd=fd)
        except FileNotFoundError:
            continue
        except OSError as error:
            said.append(f"{path}: left by a killed run, cannot be removed: {os.strerror(error.errno or 0)}")
        else:
            said.append(f"{path}: left by a killed run, removed")
    return said
