# SPDX-License-Identifier: LGPL-2.1-or-later
"""Writes how long the tasks of a play took on each host, as JSON, into the file that $HOST_SECONDS names.

It says nothing and changes nothing of what others say.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: host_seconds
type: aggregate
short_description: The seconds that a play's tasks took on each host
description:
  - Writes them as a JSON object to the file that the environment variable E(HOST_SECONDS) names.
author: The journalkeeper authors
"""


class CallbackModule(CallbackBase):
    """Adds up, from a task's start on a host to its result there."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "host_seconds"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._began: dict[tuple[str, str], float] = {}
        self._seconds: dict[str, float] = defaultdict(float)

    def v2_runner_on_start(self, host: object, task: object) -> None:
        """A task begins on a host."""
        self._began[host.get_name(), task._uuid] = time.monotonic()

    def _ended(self, result: object, **_: object) -> None:
        name = result._host.get_name()
        self._seconds[name] += time.monotonic() - self._began.pop((name, result._task._uuid), time.monotonic())

    v2_runner_on_ok = v2_runner_on_failed = v2_runner_on_skipped = v2_runner_on_unreachable = _ended

    def v2_playbook_on_stats(self, stats: object) -> None:
        """The end: write the sums."""
        with open(os.environ["HOST_SECONDS"], "w", encoding="utf-8") as file:
            json.dump(self._seconds, file)
