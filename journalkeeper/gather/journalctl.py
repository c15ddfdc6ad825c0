# SPDX-License-Identifier: LGPL-2.1-or-later
"""Entries of the journal, the newest first, from a journalctl of our own.

An answer that breaks off is an error and not an answer. Source: journalctl(1); systemd.journal-fields(7); the JSON
format of systemd.io/JOURNAL_EXPORT_FORMATS: a field is text, an array of bytes where it is not printable UTF-8, an
array of several where it was given several times, and null where it is longer than 4,096 bytes.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final

from journalkeeper.model.errors import KeeperError, NeedsRootError

PROGRAM: Final = ("journalctl", "--no-pager", "--quiet", "--reverse", "--output=json")
SAID: Final = 2000
"""How much of what journalctl says on stderr is told."""

Entry = dict[str, Any]


class JournalctlError(KeeperError):
    """journalctl broke off, or wrote what is no entry."""


def entries(fields: Sequence[str], matches: Sequence[str], *, most: int, directory: str | None) -> Iterator[Entry]:
    """The newest entries that match, with these fields and those that every entry has; at most `most`.

    Raises: JournalctlError with journalctl's words; NeedsRootError where it may not read the journal;
        OSError if it cannot be started.
    """
    where = [] if directory is None else [f"--directory={directory}"]
    words = [*PROGRAM, f"--lines={most}", f"--output-fields={','.join(fields)}", *where, *matches]
    with ExitStack() as stack:
        said = stack.enter_context(tempfile.TemporaryFile())
        child = stack.enter_context(
            subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said)
        )
        stack.callback(child.kill)  # whoever stops reading does not wait for the rest
        if child.stdout is None:
            raise JournalctlError("journalctl has no output")
        for line in child.stdout:
            try:
                entry = json.loads(line)
            except ValueError as error:
                raise JournalctlError(f"journalctl broke off: {_words(child, said)}") from error
            if not isinstance(entry, dict):
                raise JournalctlError(f"journalctl wrote {line[:80]!r}, which is no entry")
            yield entry
        status = child.wait()
        if status > 0 and _refused(said):
            raise NeedsRootError("journalctl: the journal may be read by root and the group systemd-journal only")
        if status != 0:
            raise JournalctlError(f"journalctl broke off: {_words(child, said)}")


def sees_all(directory: str | None) -> bool:
    """Whether we may read the whole journal; a plain user is shown only what is that user's own, and told so.

    Raises: OSError if journalctl cannot be started.
    """
    if os.geteuid() == 0:
        return True
    where = [] if directory is None else [f"--directory={directory}"]
    words = ["journalctl", "--no-pager", "--lines=0", *where]
    said = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False).stderr
    return b"not seeing messages" not in said and b"insufficient permissions" not in said


def _refused(said: Any) -> bool:
    said.seek(0)
    return b"insufficient permissions" in said.read(SAID)


def _words(child: subprocess.Popen[bytes], said: Any) -> str:
    """How it ended, and what it said."""
    status = child.wait()
    said.seek(0)
    text = said.read(SAID).decode(errors="replace").strip()
    how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
    return f"{how}: {text}" if text else how


def text(value: Any) -> str:
    """A field's text, of several the first; bytes that are not UTF-8 as os.fsdecode has them; "" without a field."""
    if isinstance(value, list):
        if all(isinstance(one, int) for one in value):
            return bytes(one & 0xFF for one in value).decode(errors="surrogateescape")
        value = value[0]
    return value if isinstance(value, str) else ""


def length(value: Any) -> int | None:
    """A field's length in bytes, None where it is not told."""
    if isinstance(value, str):
        return len(value.encode(errors="surrogatepass"))
    if isinstance(value, list) and all(isinstance(one, int) for one in value):
        return len(value)
    return None


def number(value: Any) -> int | None:
    """A field that is a decimal number below 2^63, None where it is none."""
    digits = text(value)
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 19 else None
