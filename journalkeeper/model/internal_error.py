# SPDX-License-Identifier: LGPL-2.1-or-later
"""The one place that catches any exception: around the turn of one file, and around one event.

No other code does. A turn is short (look at one file, judge it, do one action), so an unforeseen exception costs only
that file its turn. It becomes the reason `internal-error`, and the file is left alone until it changes. After such an
event all files are looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, TypeVar

T = TypeVar("T")

WORDS = 200
"""The number of characters of an exception's message that are shown, because it may quote a stranger's text."""

FRAMES = 8
"""The number of innermost calls that are shown; the rest of a recursion is the same."""


class InternalError(NamedTuple):
    """A turn that a bug of ours ended; `detail` is the exception and its traceback in one line."""

    detail: str


def catch_errors(turn: Callable[[], T]) -> T | InternalError:
    """Return the result of one file's `turn`, or an InternalError with the exception that ended it."""
    try:
        return turn()
    except Exception as error:  # noqa: BLE001 - one file's failure never ends a run, and no input ends the service
        return InternalError(_describe_error(error))


def _describe_error(error: Exception) -> str:
    """Return the exception and the calls that led to it, the innermost first, in one line."""
    words = " ".join(f"{type(error).__name__}: {error}".split())
    calls = _calls(error.__traceback__)[::-1]
    return f"{words[:WORDS]} in {', called from '.join(calls[:FRAMES])}"


def _calls(trace: TracebackType | None) -> list[str]:
    calls = []
    while trace is not None:
        code = trace.tb_frame.f_code
        calls.append(f"{code.co_name} ({'/'.join(code.co_filename.split('/')[-2:])}:{trace.tb_lineno})")
        trace = trace.tb_next
    return calls
