# SPDX-License-Identifier: LGPL-2.1-or-later
"""Entries of the journal from a journalctl of our own, and their fields.

An answer that breaks off is an error and not an answer. Source: journalctl(1); systemd.journal-fields(7); the JSON
format of systemd.io/JOURNAL_EXPORT_FORMATS: a field is text, an array of bytes where it is not printable UTF-8, an
array of several where it was given several times, and null where it is longer than 4,096 bytes.
"""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, Any, Final

from journalkeeper.model.errors import KeeperError, NeedsRootError

PROGRAM: Final = ("journalctl", "--no-pager", "--quiet", "--output=json")
SAID: Final = 2000
"""How much of what journalctl says on stderr is quoted."""

FLUSHED: Final = re.compile(r"Time spent on flushing to .* is ([0-9a-z. ]+) for (\d{1,18}) entries")
"""What journald says when it has flushed. Source: systemd 252 to 257, journald-server.c."""

INSUFFICIENT: Final = "insufficient permissions"

Entry = dict[str, Any]


class JournalctlError(KeeperError):
    """journalctl broke off, or wrote what is no entry."""


class Journalctl:
    """A journalctl that is running; `output` is what it writes, an entry a line."""

    def __init__(self, child: subprocess.Popen[bytes], output: IO[bytes], said: IO[bytes]) -> None:
        self._child = child
        self._said = said
        self.output = output

    def entry(self, line: bytes) -> Entry:
        """The entry in a line. Raises: as `broke_off`, JournalctlError if it is none."""
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise self.broke_off() from error
        if not isinstance(entry, dict):
            raise JournalctlError(f"journalctl wrote {line[:80]!r}, which is no entry")
        return entry

    def status(self) -> int:
        """How it ended, waiting for it."""
        return self._child.wait()

    def said(self) -> str:
        """What it says on stderr."""
        self._said.seek(0)
        return self._said.read(SAID).decode(errors="replace").strip()

    def broke_off(self) -> KeeperError:
        """How it ended, and what it said; NeedsRootError where it may not read the journal."""
        status, said = self.status(), self.said()
        denied = _denied(said) if status > 0 else None
        if denied is not None:
            return denied
        how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        return JournalctlError(f"journalctl broke off: {how}: {said}" if said else f"journalctl broke off: {how}")


@contextmanager
def running(fields: Sequence[str], *options: str, directory: str | None) -> Iterator[Journalctl]:
    """A journalctl that writes entries with these fields and those that every entry has, killed at the end.

    Raises: OSError if it cannot be started.
    """
    where = [] if directory is None else [f"--directory={directory}"]
    words = [*PROGRAM, f"--output-fields={','.join(fields)}", *where, *options]
    with ExitStack() as stack:
        said = stack.enter_context(tempfile.TemporaryFile())
        child = stack.enter_context(
            subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, env=_environment())
        )
        stack.callback(child.kill)  # whoever stops reading does not wait for the rest
        if child.stdout is None:
            raise JournalctlError("journalctl has no output")
        yield Journalctl(child, child.stdout, said)


def entries(fields: Sequence[str], matches: Sequence[str], *, most: int, directory: str | None) -> Iterator[Entry]:
    """The newest entries that match, the newest first, at most `most`; fields as in `running`.

    Raises: JournalctlError with journalctl's words; NeedsRootError where it may not read the journal;
        OSError if it cannot be started.
    """
    with running(fields, f"--lines={most}", "--reverse", *matches, directory=directory) as journalctl:
        yield from map(journalctl.entry, journalctl.output)
        if journalctl.status() != 0:
            raise journalctl.broke_off()


def sees_all(directory: str | None) -> bool:
    """Whether we may read the whole journal; a plain user is shown only what is that user's own, and told so.

    Raises: NeedsRootError where we may read nothing of it; OSError if journalctl cannot be started.
    """
    if os.geteuid() == 0:
        return True
    where = [] if directory is None else [f"--directory={directory}"]
    words = ["journalctl", "--no-pager", "--lines=0", *where]
    said = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=_environment()).stderr
    denied = _denied(said.decode(errors="replace"))
    if denied is not None:
        raise denied
    return b"not seeing messages" not in said


def _environment() -> dict[str, str]:
    """Ours, but errors of the kernel in English."""
    return {**os.environ, "LC_ALL": "C.UTF-8"}


def _denied(said: str) -> NeedsRootError | None:
    """The error if journalctl says that it may not read the journal; what the kernel refuses root is another one."""
    if INSUFFICIENT in said:
        return NeedsRootError("journalctl: the journal may be read by root and the group systemd-journal only")
    if os.geteuid() != 0 and os.strerror(errno.EACCES) in said:
        return NeedsRootError(f"journalctl: {said.strip()}")
    return None


def plain(line: bytes) -> dict[str, str]:
    """The entry in a line, of which the fields that are one text each."""
    return {name: value for name, value in json.loads(line).items() if isinstance(value, str)}


def text(value: Any) -> str:
    """A field's text, of several the first; bytes that are not UTF-8 as os.fsdecode has them; "" without a field."""
    if isinstance(value, list):
        if all(isinstance(one, int) for one in value):
            return bytes(one & 0xFF for one in value).decode(errors="surrogateescape")
        value = value[0]
    return value if isinstance(value, str) else ""


def length(value: Any) -> int | None:
    """A field's length in bytes, None where it is not known."""
    if isinstance(value, str):
        return len(value.encode(errors="surrogatepass"))
    if isinstance(value, list) and all(isinstance(one, int) for one in value):
        return len(value)
    return None


def number(value: Any) -> int | None:
    """A field that is a decimal number below 2^63, None where it is none."""
    if isinstance(value, int):
        return value
    digits = text(value)
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 19 else None


def wait_us(entry: Mapping[str, Any]) -> int | None:
    """How long one entry waited for journald; None if nobody knows, less than 0 if the clock was set back.

    An entry from /dev/log or the native socket bears the kernel's time of its datagram beside that at which journald
    took it. A damaged time is no number: sd-journal's reader leaves bytes, or a list of those that there are.
    """
    taken_us, sent_us = number(entry.get("__REALTIME_TIMESTAMP")), number(entry.get("_SOURCE_REALTIME_TIMESTAMP"))
    return None if taken_us is None or sent_us is None else taken_us - sent_us
