# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find, merge and read configuration files as systemd does.

A wrong line is data, in its place among the assignments. The caller decides whether to refuse it (our own
configuration) or to ignore it as journald does. Only a file that cannot be read raises an exception.
Source: systemd 255, src/shared/conf-parser.c and src/basic/conf-files.c; journald.conf(5).
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from typing import NamedTuple

from journalkeeper.model.errors import FileError

PROJECT_DIRS = ("etc", "run", "usr/local/lib", "usr/lib")
"""systemd's CONF_PATHS, the strongest first."""

MAX_LINE_BYTES = 1 << 20
"""systemd's LONG_LINE_MAX; it limits also a line that is joined from several."""

MISSING = (errno.ENOENT, errno.ENOTDIR)

_BLANK = b" \t\n\r"
_BOM = b"\xef\xbb\xbf"
# Each of these may end a line, and combinations of them count as one end: read_line_full().
_LINE_END = re.compile(rb"\r\n\0?|\n\r\0?|\r\0?|\n\0?|\0")
_UNSAFE_IN_SECTION = re.compile(r"""[\x01-\x1f"'\\\x7f]""")


class Assignment(NamedTuple):
    """A line "key=value", or a wrong line with its `problem`.

    `line` counts from 1 and is the last line of a continued one, as in systemd's own messages; 0 means the whole file.
    `section` is "" before the first header. A wrong line has no key, and its text as value. After a `fatal` problem
    systemd reads nothing more, neither of this file nor of later ones.
    """

    file: str
    line: int
    section: str
    key: str
    value: str
    problem: str = ""
    fatal: bool = False


def read_assignments(name: str, *, root: str = "/", subdir: str = "systemd") -> list[Assignment]:
    """Return all assignments and wrong lines of the main file and the drop-ins of the configuration `name`
    ("journald.conf"), in their order: later ones win.

    A file hides those of its name in weaker PROJECT_DIRS below `root`. These are searched for every version of
    journald, although journald before 256 read the main file only from /etc. Links can lead out of `root`.

    Raises: FileError with the file or directory that exists and cannot be read (EACCES, EIO, ELOOP).
    """
    places = [os.path.join(root, directory, subdir, name) for directory in PROJECT_DIRS]
    main = next((rows for place in places if (rows := _parse_if_exists(place)) is not None), [])
    dropins: dict[str, str] = {}
    for place in places:
        for entry in _list_dropin_names(place + ".d"):
            dropins.setdefault(entry, os.path.join(place + ".d", entry))
    ordered = [dropins[entry] for entry in sorted(dropins, key=os.fsencode)]
    return [*main, *(row for file in ordered for row in _parse_if_exists(file) or [])]


def _parse_if_exists(file: str) -> list[Assignment] | None:
    """Return `parse_file(file)`, or None if it is missing (ENOENT, ENOTDIR). Raises: FileError for other errors."""
    try:
        return parse_file(file)
    except FileError as error:
        if error.number in MISSING:
            return None
        raise


def _list_dropin_names(directory: str) -> list[str]:
    """Return the names of "*.conf" in `directory` that do not begin with a dot, unsorted; [] if it does not exist."""
    try:
        return [entry for entry in os.listdir(directory) if entry.endswith(".conf") and not entry.startswith(".")]
    except OSError as error:
        if error.errno in MISSING:
            return []
        raise FileError.wrap("list its drop-ins", directory, error) from error


def parse_file(file: str) -> list[Assignment]:
    """Return the assignments and wrong lines in a file, in their order, up to the first fatal problem.

    A directory or FIFO is a fatal problem, and a character device is empty.

    Raises: FileError if the file cannot be opened or read (ENOENT, EACCES, EIO, ELOOP).
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise FileError.wrap("read it", file, error) from error
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISCHR(mode):
            return []
        if not stat.S_ISREG(mode):
            problem = "is a directory, not a file" if stat.S_ISDIR(mode) else "is not a regular file"
            return [Assignment(file, 0, "", "", "", problem, fatal=True)]
        with open(descriptor, "rb", closefd=False) as opened:
            data = opened.read()
    except OSError as error:
        raise FileError.wrap("read it", file, error) from error
    finally:
        os.close(descriptor)
    return parse(data, file)


def parse(data: bytes, file: str) -> list[Assignment]:
    """Return the assignments and wrong lines in `data` of `file`. A fatal one (header, length, UTF-8) is the last."""
    found: list[Assignment] = []
    section = ""
    for line, raw in _join_lines(data):
        text, problem = _decode_line(raw)
        if not problem and text.startswith("["):
            section, problem = _parse_section(text, section)
            if not problem:
                continue
        if problem:
            found.append(Assignment(file, line, section, "", text, problem, fatal=True))
            break
        if not text:
            continue
        key, equals, value = text.partition("=")
        if not equals or not key:
            problem = "expected KEY=VALUE, [SECTION], or a comment after # or ;"
            found.append(Assignment(file, line, section, "", text, problem))
        elif not section:
            found.append(Assignment(file, line, "", "", text, "an assignment belongs below a [SECTION]"))
        else:
            found.append(Assignment(file, line, section, key.strip(" \t\n\r"), value.strip(" \t\n\r")))
    return found


def _decode_line(raw: bytes) -> tuple[str, str]:
    """Return a line's text without blanks around it, and "" or the broken rule: length (text ""), UTF-8 (escaped)."""
    if len(raw) >= MAX_LINE_BYTES:
        return "", f"a line is shorter than {MAX_LINE_BYTES} bytes"
    try:
        return raw.strip(_BLANK).decode(), ""
    except UnicodeDecodeError:
        return raw.strip(_BLANK).decode(errors="backslashreplace"), "a line is UTF-8"


def _parse_section(text: str, before: str) -> tuple[str, str]:
    """Return the name in a section header ("" for "[]") and "", or `before` and the problem: no "]", an unsafe name."""
    if not text.endswith("]"):
        return before, "a section header is [NAME]"
    if _UNSAFE_IN_SECTION.search(text):
        return before, "a section's name has no quotes, backslashes or control characters"
    return text[1:-1], ""


def _join_lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number of the last part and the text of each line, also if it is blank, except comments.

    An odd number of backslashes at the end joins the next line that is no comment, with a blank for the last one.
    """
    data = data.removeprefix(_BOM)
    pending: bytes | None = None
    line = 0
    for line, raw in enumerate(_LINE_END.split(data), 1):
        if raw.lstrip(_BLANK)[:1] in (b"#", b";"):
            continue
        joined = raw if pending is None else pending + raw
        backslashes = len(joined) - len(joined.rstrip(b"\\"))
        if backslashes % 2 and len(joined) < MAX_LINE_BYTES:
            pending = joined[:-1] + b" "
        else:
            pending = None
            yield line, joined
    if pending is not None:
        yield line, pending
