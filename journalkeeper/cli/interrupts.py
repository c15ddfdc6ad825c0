# SPDX-License-Identifier: LGPL-2.1-or-later
"""Treat Ctrl-C, SIGTERM and SIGHUP during a rewrite as requests to stop at the next chunk border.

A signal only sets a flag, however often it arrives.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """A context that records signals; a call returns whether one arrived.

    `hint` is written to stderr at the first signal, unless it is "".
    """

    def __init__(self, hint: str) -> None:
        self._hint = hint
        self._asked = False
        self._before: dict[signal.Signals, signal._HANDLER] = {}

    def __call__(self) -> bool:
        return self._asked

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            # nohup(1) has SIGHUP ignored, and that stays so
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if not self._asked and self._hint:
            # not print(): a handler may run in the middle of one, and buffered files are not re-entrant
            os.write(2, f"{self._hint}\n".encode())
        self._asked = True
