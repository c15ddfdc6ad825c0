# SPDX-License-Identifier: LGPL-2.1-or-later
"""Write the metrics after each run to the file that Textfile= names.

Metrics never make a run fail: a file that cannot be written becomes a notice. A failed run is shown, too.

The file is written when a number changed. In between the service renews its modification time. Without that the alert
JournalkeeperSilent fires, because node_exporter shows an old file for ever.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from journalkeeper.config import Config
from journalkeeper.health.verdict import judge_present, summarize_run
from journalkeeper.history.store import Record
from journalkeeper.journald.opening import FLAGS
from journalkeeper.metrics import prometheus
from journalkeeper.metrics.prometheus import Facts, compute_status
from journalkeeper.model import Host, Outcome, Plan
from journalkeeper.model.errors import BusyError, KeeperError, NotBtrfsError, run_bookkeeping
from journalkeeper.whole_file import write_whole

CONFIRM_S: Final = 1800.0
"""How old the file of a healthy service may become, and 90 s more: JournalkeeperSilent waits for 45 min."""

NAME: Final = "journalkeeper.prom"

SINCE: Final = re.compile(rb"(?m)^journalkeeper_unhealthy_since_timestamp_seconds (\d{1,10})\.(\d{6})$")


def name_metrics_file(place: str) -> str:
    """Return the path of the metrics file for Textfile= (not ""): `place` if it ends in .prom, else NAME in `place`."""
    return place if place.endswith(".prom") else f"{place}/{NAME}"


class Publisher:
    """The writer of the file that `textfile`, the value of `Textfile=`, names. Without one, nothing is written.

    With `judges`, the publisher derives the verdict from each run. `judges` is False in the service, which calls
    `publish_health`: the service's verdict knows more than a run, such as a pause or a read-only directory.

    Only the start of an unhealthy time is read from the file, if possible. The last run counts as successful at first.
    """

    def __init__(self, config: Config, textfile: str, *, judges: bool) -> None:
        self._config = config
        self._judges = judges
        self._path = name_metrics_file(textfile) if textfile else ""
        self.directories = (os.path.dirname(self._path),) if textfile else ()
        since_us = _read_unhealthy_since_us(self._path)
        self._facts = Facts(last_run_success=True, by_service=not judges, unhealthy_since_timestamp_us=since_us)
        self._text = ""

    def publish_success(
        self, seen: tuple[Host, Plan], outcomes: Sequence[Outcome], record: Record, intake_delay_us: int | None
    ) -> None:
        """Write the metrics after a successful run, unless the file has them already.

        `seen` is the run's look and plan, `record` the history. `intake_delay_us` is None outside the service.
        Raises: KeeperError if the file or the history fails.
        """
        if not self._path:
            return
        host, plan = seen
        run = record.read_last_run()
        healthy = self._facts.healthy
        if self._judges:
            waiting = tuple(record.list_waits().values())
            healthy = judge_present(summarize_run(plan, outcomes, waiting), host.now_us).health == "ok"
        self._facts = self._facts._replace(
            healthy=healthy,
            counters=record.read_counters(),
            last_run_success=True,
            status=compute_status(host, plan, outcomes, self._config),
            last_run_timestamp_us=None if run is None else run.ended_us or run.began_us,
            intake_delay_us=intake_delay_us,
        )
        self._write_if_changed()

    def publish_failure(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Write the metrics after a failed run: unhealthy with `judges`, no intake delay. An ExitStack calls this.

        Only a KeeperError or OSError counts. A BusyError does not, because another run is active, nor a NotBtrfsError
        before the first success: the host may have no btrfs. A failure to write becomes a note on `error`.
        """
        if not isinstance(error, KeeperError | OSError) or isinstance(error, BusyError):
            return
        if isinstance(error, NotBtrfsError) and self._facts.status is None:
            return
        healthy = False if self._judges else self._facts.healthy
        self._facts = self._facts._replace(last_run_success=False, intake_delay_us=None, healthy=healthy)
        for notice in run_bookkeeping(self._write_if_changed):
            error.add_note(notice)  # the run's own error matters more

    def take_over(self, before: Publisher) -> None:
        """Continue with the verdict and the facts of `before`, the one until a reload."""
        self._facts = before._facts
        self._text = before._text if before._path == self._path else ""

    def publish_health(self, *, healthy: bool | None) -> None:
        """Store the service's verdict (None: unknown). If it changed, write the metrics, but not before the first run.

        An error is dropped: the next run writes them.
        """
        if healthy is not self._facts.healthy:
            self._facts = self._facts._replace(healthy=healthy)
            if self._text or self._facts.status:
                run_bookkeeping(self._write_if_changed)

    def confirm_health(self) -> None:
        """Renew the file's mtime, if it is CONFIRM_S old and has the present verdict and numbers. Ignore errors."""
        with suppress(OSError):
            age_s = abs(time.time() - os.lstat(self._path).st_mtime)  # also after a suspend, or a clock set back
            if age_s >= CONFIRM_S and prometheus.render(self._facts) == self._text:
                os.utime(self._path, follow_symlinks=False)

    def _write_if_changed(self) -> None:
        """Note since when the host is unhealthy, and write the file if it changed or is missing. Raises: FileError.

        An unknown verdict keeps this time, and leaves it out of the file if the host was healthy.
        """
        healthy = self._facts.healthy
        since_us = self._facts.unhealthy_since_timestamp_us or None
        if healthy is not None:
            since_us = 0 if healthy else since_us or time.time_ns() // 1000
        self._facts = self._facts._replace(unhealthy_since_timestamp_us=since_us)
        text = prometheus.render(self._facts)
        if not self._path or (text == self._text and os.path.lexists(self._path)):
            return
        # Readable for all, because node_exporter runs as its own user. After a power cut the next run writes it.
        write_whole("write the metrics", self._path, text, mode=0o644, sync=False)
        self._text = text


def _read_unhealthy_since_us(path: str) -> int:
    """Return since when (us, at most now) the metrics file's verdict is not OK, 0 if it is or nothing can be read."""
    with suppress(OSError), open(path, "rb", opener=lambda name, _: os.open(name, FLAGS)) as file:
        found = SINCE.search(file.read(1 << 16))
        return min(int(found[1] + found[2]), time.time_ns() // 1000) if found else 0
    return 0
