# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper report`: one page about a host's journal. Beside the page it changes nothing."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from journalkeeper.btrfs.rename import rename_new
from journalkeeper.cli.doctor import DOCTOR_RULES, gathered
from journalkeeper.cli.text import shown
from journalkeeper.health.evidence import REPORT_ENTRIES, Wanted
from journalkeeper.health.finding import judged
from journalkeeper.model.errors import FileError, KeeperError
from journalkeeper.model.units import format_size
from journalkeeper.report.page import page

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from journalkeeper.cli.context import Context

DESCRIPTION = """\
Writes one HTML page that needs nothing else, at most 500 KiB, without scripts: how long each
boot took and how much of it the journal's flush, extents against their ideal, how long
messages waited, bytes, each with a table; what is wrong or risky; every action with its reason."""

EXAMPLES = """\
examples:
  sudo journalkeeper report -o journal.html
  sudo journalkeeper report -o journal.html --force     in place of the last one

exit status:
  0 done; 1 the page cannot be written, FILE exists, or the journal cannot be read; 2 wrong usage"""

WRITE: Final = "write the report"


def options(parser: argparse.ArgumentParser) -> None:
    """-o and --force."""
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="where to write the page")
    parser.add_argument("--force", action="store_true", help="write it also in place of a file, or of a link")


def run(args: argparse.Namespace, context: Context) -> int:
    """Write the page."""
    path = os.path.abspath(args.output)
    with _directory(path) as dir_fd:
        refuse(path, dir_fd, force=args.force)
        evidence = gathered(context, Wanted(args.directory, REPORT_ENTRIES, plan=True))
        text = page(evidence, judged(evidence, DOCTOR_RULES), os.uname().nodename)
        write(path, dir_fd, text, force=args.force)
    size, output = len(text.encode()), context.output
    if output.json != "off":
        output.document({"path": path, "size_bytes": size})
    elif output.legend:
        output.lines([f"{shown(path)}: {format_size(size)}, for any browser"], paged=False)
    return 0


@contextmanager
def _directory(path: str) -> Iterator[int]:
    """The directory that the page is to be in."""
    try:
        dir_fd = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise FileError.wrap(WRITE, path, error) from error
    try:
        yield dir_fd
    finally:
        os.close(dir_fd)


def refuse(path: str, dir_fd: int, *, force: bool) -> None:
    """See whether the page may be written there, before the work. Raises: KeeperError."""
    try:
        mode = os.stat(os.path.basename(path), dir_fd=dir_fd, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise FileError.wrap(WRITE, path, error) from error
    what = "a file" if stat.S_ISREG(mode) else "a link" if stat.S_ISLNK(mode) else ""
    if not what:
        raise KeeperError(f"{path}: is neither a file nor a link; the report is written to a file")
    if not force:
        raise KeeperError(f"{path}: {what} has this name; --force writes the report in its place")


def write(path: str, dir_fd: int, text: str, *, force: bool) -> None:
    """Put the page under its name: whole, or not at all, and never through a link.

    Raises: FileError (EEXIST something took the name meanwhile; EACCES; ENOSPC; EROFS).
    """
    name = os.path.basename(path)
    new = f".journalkeeper-report-{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(new, flags, 0o644, dir_fd=dir_fd)
    except OSError as error:
        raise FileError.wrap(WRITE, path, error) from error
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if force:
            os.rename(new, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        else:
            _rename(dir_fd, new, name)
    except OSError as error:
        raise FileError.wrap(WRITE, path, error) from error
    finally:  # also after Ctrl-C
        with suppress(FileNotFoundError):
            os.unlink(new, dir_fd=dir_fd)


def _rename(dir_fd: int, new: str, name: str) -> None:
    """The same for a name that is still free; a hard link where the filesystem cannot rename so (NFS)."""
    try:
        rename_new(dir_fd, new, name)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        os.link(new, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
