# SPDX-License-Identifier: LGPL-2.1-or-later
"""The engine and the watch for the present configuration. In the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from journalkeeper.engine import Engine
from journalkeeper.model.errors import KeeperError
from journalkeeper.service.daily_log import Say
from journalkeeper.service.log import ERROR, INFO, Event
from journalkeeper.service.notify import Notify
from journalkeeper.service.wakeups import Wakeups
from journalkeeper.service.watch import Change, Watch

COMPARE_S: Final = 60.0
"""The least time between two comparisons with the configuration on disk: each takes a few milliseconds."""

WRONG: Final = "The configuration on disk is wrong, and the running values stay"


class Reloader:
    """Holds `engine`, which `load` makes, and `watch`, which calls `on_change`; replaces both on request.

    `problem` is why the running configuration is not the one on disk, "" while it is.
    """

    def __init__(
        self,
        load: Callable[[], Engine],
        on_change: Callable[[Change], None],
        wakeups: Wakeups,
        *,
        say: Say,
        notify: Notify,
    ) -> None:
        self._load = load
        self._on_change = on_change
        self._wakeups = wakeups
        self._say = say
        self._notify = notify
        self._reloading: asyncio.Task[None] | None = None
        self._reload_again = False
        self._reload_error: KeeperError | OSError | None = None
        self._compared_s = time.monotonic()
        self.problem = ""
        self.engine = load()
        self.watch = Watch(self.engine.directories, on_change)

    async def reload(self) -> None:
        """Read the configuration again. Raises: KeeperError, OSError if it is wrong; the running values stay."""
        self.request()
        if self._reloading is not None:
            await asyncio.shield(self._reloading)
        if self._reload_error is not None:
            raise self._reload_error

    def request(self) -> None:
        """Read the configuration again, in a thread. A request during that causes one more reading."""
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.get_running_loop().create_task(self._replace())
        else:
            self._reload_again = True

    def compare(self) -> None:
        """Set `problem` if the configuration on disk differs from the running one; at most every COMPARE_S.

        In a thread.
        """
        if time.monotonic() - self._compared_s < COMPARE_S:
            return
        self._compared_s = time.monotonic()
        try:
            same = self._load().has_configuration_of(self.engine)
        except (KeeperError, OSError) as error:
            self.problem = f"{WRONG}: {error}"
        else:
            self.problem = "" if same else "The configuration on disk is not the one that runs"

    async def _replace(self) -> None:
        """Replace the engine and the watch. If the new configuration is wrong, the running values stay."""
        self._notify.reloading()
        self._reload_error = None
        try:
            engine = await asyncio.to_thread(self._load)
            watch = None if engine.directories == self.watch.tops else Watch(engine.directories, self._on_change)
        except (KeeperError, OSError) as error:
            self._reload_error, self.problem = error, f"{WRONG}: {error}"
            self._say(ERROR, f"not reloaded, the running configuration stays: {error}", Event.NOT_RELOADED)
        else:
            engine.take_over(self.engine)
            self.engine, self.problem = engine, ""
            if watch is not None:
                self.watch.close()
                self.watch = watch
                watch.attach(asyncio.get_running_loop())
            self._say(INFO, "the configuration was read again", Event.RELOADED)
        self._wakeups.rescan()
        self._notify.ready()
        if self._reload_again:
            self._reload_again = False
            await self._replace()
