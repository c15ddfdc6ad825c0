# SPDX-License-Identifier: LGPL-2.1-or-later
"""Rows of files that cannot be looked at."""

from __future__ import annotations

import errno
import os

import pytest

from journalkeeper.model import Reason
from journalkeeper.model.words import MAX_FILE_BYTES
from journalkeeper.observe.file_row import MAX_TIME_NS, describe_impossible_stat, explain_error


@pytest.mark.parametrize(
    ("size_bytes", "mtime_ns", "words"),
    [
        (MAX_FILE_BYTES, MAX_TIME_NS - 1, ""),
        (0, 1 - MAX_TIME_NS, ""),
        (MAX_FILE_BYTES + 1, 0, "files above "),
        (0, MAX_TIME_NS, "impossible modification time"),
        (0, -MAX_TIME_NS, "impossible modification time"),
    ],
)
def test_a_size_and_a_time_are_possible_up_to_their_limits(size_bytes: int, mtime_ns: int, words: str) -> None:
    times = {"st_mtime_ns": mtime_ns}
    said = describe_impossible_stat(os.stat_result((0, 0, 0, 0, 0, 0, size_bytes, 0, 0, 0), times))
    assert words in said
    assert bool(said) == bool(words)


def test_only_an_error_of_the_disk_is_an_io_error() -> None:
    assert explain_error(OSError(errno.ENOMEM, "why")) == (Reason.REFUSED, os.strerror(errno.ENOMEM))
    assert explain_error(OSError(errno.EUCLEAN, "why"))[0] is Reason.IO_ERROR
    assert explain_error(OSError(errno.EPERM, "why"))[0] is Reason.UNREADABLE
