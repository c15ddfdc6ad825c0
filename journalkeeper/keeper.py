# SPDX-License-Identifier: LGPL-2.1-or-later
"""The seam between the commands and the work: the same records from the engine and from the service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from journalkeeper.model import Plan, Request
from journalkeeper.model.errors import KeeperError
from journalkeeper.model.run import Progress, Report


class Keeper(Protocol):
    """Plans and does what a user requests: the Engine in this process, or bus.client.Service in the running service."""

    def plan(self, request: Request) -> Plan:
        """Return the plan that `defragment` would carry out now."""

    def defragment(
        self, request: Request, *, on_progress: Callable[[Progress], None], stop: Callable[[], bool]
    ) -> Report:
        """Carry out `request` to its end, or until `stop` returns True between two pieces of a file."""


class HungError(KeeperError):
    """The service has its name on the bus and does not answer in time."""


class BusyBusError(KeeperError):
    """The bus itself does not answer in time, so that nothing is known about the service."""

    def __init__(self) -> None:
        super().__init__("the system bus is too busy to reach the service; try again later")
