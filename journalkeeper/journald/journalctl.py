# SPDX-License-Identifier: LGPL-2.1-or-later
"""Entries of the journal and their fields, read by running journalctl.

An incomplete answer raises an error. In JSON, a field is a text, or an array of bytes if it is not printable UTF-8. It
is an array of values if the entry has it several times, and null above 4,096 bytes.

Source: journalctl(1); systemd.journal-fields(7); systemd.io/JOURNAL_EXPORT_FORMATS.
"""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Final, cast

from journalkeeper.model.errors import KeeperError, NeedsRootError

PROGRAM: Final = ("journalctl", "--no-pager", "--quiet", "--output=json")
SAID: Final = 2000
"""The number of characters of journalctl's stderr that error messages quote."""

FLUSHED: Final = re.compile(r"Time spent on flushing to .* is ([0-9a-z. ]+) for (\d{1,18}) entries")
"""journald's message after a flush. Source: systemd 252 to 257, journald-server.c."""

Entry = dict[str, Any]


@dataclass
class Journalctl:
    """A running journalctl. `output` contains its lines, one entry each, and `said` its messages on stderr."""

    child: subprocess.Popen[bytes]
    output: IO[bytes]
    said: IO[bytes]

    def make_error(self) -> KeeperError:
        """Wait for journalctl to end, and return a NeedsRootError or KeeperError for the caller to raise.

        The caller must have read the output: a full pipe would block journalctl.
        """
        status = self.child.wait()
        self.said.seek(0)
        said = self.said.read(SAID).decode(errors="replace").strip()
        how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        return _find_denial(said) or KeeperError(": ".join(filter(None, ("journalctl failed", how, said))))


@contextmanager
def run_journalctl(fields: Sequence[str], *options: str, directory: str | None) -> Iterator[Journalctl]:
    """Run journalctl with `options`, yield the process, and kill it at the end of the block.

    journalctl writes one line of JSON for each entry of the journal in `directory`, or of the host's if that is None.

    Raises: OSError if journalctl cannot be started.
    """
    words = [*PROGRAM, f"--output-fields={','.join(fields)}", *_choose_directory(directory), *options]
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, env=_make_env()
        ) as child,
    ):
        try:
            yield Journalctl(child, cast("IO[bytes]", child.stdout), said)
        finally:
            child.kill()  # a caller that stops reading does not wait for the rest


def read_entries(
    fields: Sequence[str], matches: Sequence[str], *, most: int | None, directory: str | None
) -> Iterator[Entry]:
    """Yield the newest entries that match `matches`, the oldest first, at most `most`. Any field can be missing.

    `matches` can contain options of journalctl, too.

    Raises: KeeperError with journalctl's messages if journalctl fails or writes incomplete JSON; NeedsRootError if
    journalctl may not read the journal; OSError if it cannot be started.
    """
    limit = [] if most is None else [f"--lines={most}"]
    with run_journalctl(fields, *limit, *matches, directory=directory) as journalctl:
        try:
            yield from map(json.loads, journalctl.output)
        except ValueError as error:
            deque(journalctl.output, maxlen=0)  # it ends when all is read
            raise journalctl.make_error() from error
        if journalctl.child.wait() != 0:
            raise journalctl.make_error()


def can_see_all(directory: str | None) -> bool:
    """Return whether the caller can read the whole journal. Return True for root without a check.

    journalctl shows other users only their own entries, and writes a hint about this to stderr. For a user who may read
    none, the result has no meaning: `read_entries` raises the error.

    Raises: OSError if journalctl cannot be started.
    """
    if os.geteuid() == 0:
        return True
    words = ["journalctl", "--no-pager", "--lines=0", *_choose_directory(directory)]
    said = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=_make_env()).stderr
    return b"not seeing messages" not in said


def _choose_directory(directory: str | None) -> list[str]:
    return [] if directory is None else [f"--directory={directory}"]


def _make_env() -> dict[str, str]:
    """Return the environment with a locale in which the kernel's errors are in English."""
    return {**os.environ, "LC_ALL": "C.UTF-8"}


def _find_denial(messages: str) -> NeedsRootError | None:
    """Return NeedsRootError if `messages` have "insufficient permissions", or an EACCES of a caller who is not root."""
    if "insufficient permissions" in messages:
        return NeedsRootError("journalctl: only root and the group systemd-journal may read the journal")
    if os.geteuid() != 0 and os.strerror(errno.EACCES) in messages:  # for root, EACCES has another cause
        return NeedsRootError(f"journalctl: {messages.strip()}")
    return None


def decode_text(value: Any) -> str:
    """Return the text of a value, or of the first of several; bytes by surrogateescape; "" for None or a number."""
    if not isinstance(value, list):
        return value if isinstance(value, str) else ""
    if all(isinstance(one, int) for one in value):
        return bytes(one & 0xFF for one in value).decode(errors="surrogateescape")
    return decode_text(value[0])


def parse_number(value: Any) -> int | None:
    """Return the number of a field's value: an int, or a `decode_text` of at most 18 decimal digits; else None."""
    if isinstance(value, int):
        return value
    digits = decode_text(value)
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 19 else None
