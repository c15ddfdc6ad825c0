# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper daemon`: the service in the foreground."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from journalkeeper.cli.context import Context

DESCRIPTION = """\
Watches the journal directories and keeps their files in order until SIGTERM. Archives are
rewritten once, some time after they appeared; ranges of active files in journald's flush
windows. SIGHUP reads the configuration again. Runs as well without systemd and in the
foreground; journalkeeper.service runs it on a host."""

EXAMPLES = """\
examples:
  journalkeeper daemon                  as journalkeeper.service does
  STATE_DIRECTORY=$PWD/state journalkeeper daemon -D /mnt/var/log/journal --config new.conf

exit status:
  0 a signal ended it, 1 it cannot run, 2 wrong usage"""


def options(_parser: argparse.ArgumentParser) -> None:
    """It has none of its own."""


def run(_args: argparse.Namespace, context: Context) -> int:
    """Run until a signal ends it."""
    import asyncio  # noqa: PLC0415 - no other command needs the service's modules
    import gc  # noqa: PLC0415
    import sys  # noqa: PLC0415

    from journalkeeper.bus import names  # noqa: PLC0415
    from journalkeeper.bus.server import Server  # noqa: PLC0415
    from journalkeeper.service.api import Api  # noqa: PLC0415
    from journalkeeper.service.daemon import Daemon  # noqa: PLC0415
    from journalkeeper.service.log import Log, to_journald  # noqa: PLC0415

    def connect(api: Api, *say: Any) -> Server:
        return Server(api, names.named_address(), *say)

    gc.enable()  # cli.main has no use for it, and is in a hurry
    sys.setswitchinterval(0.005)
    with closing(Log(to_journald())) as log:
        asyncio.run(Daemon(lambda: context.new_engine(patient=True), log.say, connect).run())
    return 0
