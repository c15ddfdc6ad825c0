# SPDX-License-Identifier: LGPL-2.1-or-later
"""Ctrl-C and SIGTERM while files are rewritten: a wish to stop, obeyed at the next chunk border.

A signal sets a flag and nothing else, however often it comes.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """A context in which signals only ask; calling it tells whether one did.

    `hint` is shown once on stderr when the first arrives; "" shows nothing.
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
