# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper daemon`: the service in the foreground.

Watches the journal directories and keeps their files in order until SIGTERM. It rewrites archives once,
some time after they appeared, and ranges of active files in journald's flush windows. It waits for a
directory that does not exist. SIGHUP makes it read the configuration again. It also runs without systemd
and in the foreground; journalkeeper.service runs it on a host.

examples:
  journalkeeper daemon                  as journalkeeper.service does
  STATE_DIRECTORY=$PWD/state journalkeeper daemon -D /mnt/log --config new.conf

exit status:
  0 a signal ended it, 1 it cannot run, 2 wrong usage, 75 it has to be started
  again because a journal directory was replaced
"""

from __future__ import annotations

import argparse
import asyncio
from functools import partial
from typing import Final

from journalkeeper.bus import names
from journalkeeper.cli.context import Context
from journalkeeper.service.log import INFO, Log, find_journald_socket

RESTART: Final = 75
"""EX_TEMPFAIL of sysexits.h: RestartForceExitStatus= and SuccessExitStatus= of the unit."""


def run(_args: argparse.Namespace, context: Context) -> int:
    """Run the service until a signal ends it, and return 0, or RESTART if a journal directory was replaced.

    Raises: KeeperError if the service cannot run.
    """
    return asyncio.run(_serve_until_stopped(context, Log(find_journald_socket())))


async def _serve_until_stopped(context: Context, log: Log) -> int:
    """Run the service with its bus server. Return 0, or log a ReplacedError and return RESTART."""
    from journalkeeper.bus.server import serve_bus  # noqa: PLC0415 - pages are made without pyinotify
    from journalkeeper.service.daemon import Daemon  # noqa: PLC0415
    from journalkeeper.service.worker import ReplacedError  # noqa: PLC0415

    daemon = Daemon(lambda: context.make_engine(patient=True), log)
    try:
        await daemon.run(partial(serve_bus, daemon, names.find_address()))
    except ReplacedError as error:
        log.say(INFO, str(error))
        return RESTART
    return 0
