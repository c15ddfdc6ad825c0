# SPDX-License-Identifier: LGPL-2.1-or-later
"""The one place that catches any exception: around one file's turn, and around one event.

Nobody else does. A turn is short (look at one file, judge it, do one action), so
what was not foreseen costs that file its turn and nobody else anything: it becomes the reason
`internal-error`, and the file is left alone until it changes. After such an event everything is looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, TypeVar

T = TypeVar("T")

WORDS = 200
"""Characters of an exception's message that are shown: it may quote what a stranger wrote."""

FRAMES = 8
"""The innermost calls that are shown: of a recursion the rest is the same."""


class InternalError(NamedTuple):
    """A turn that came to nothing by a mistake of ours; `detail` is the exception and its traceback in one line."""

    detail: str


def guarded(turn: Callable[[], T]) -> T | InternalError:
    """What one file's `turn` returns, or the exception that ended it."""
    try:
        return turn()
    except Exception as error:  # noqa: BLE001 - one file's failure never ends a run, and no input ends the service
        return InternalError(_in_one_line(error))


def _in_one_line(error: Exception) -> str:
    """The exception, then the calls that led to it, the innermost first."""
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
