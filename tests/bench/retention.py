# SPDX-License-Identifier: LGPL-2.1-or-later
# ruff: noqa: T201 - a bench prints
"""Measure how many boots a host keeps in the same bytes, before and after `journalkeeper retention --apply`.

    sudo python -m tests.bench.retention [--boots 60]

journald may take 64 MiB, in files of a 16th, and each boot logs some 8 MiB. Archives so small do not pay by default:
MinReclaim=64K. The host boots first without journalkeeper, until journald deletes, then with it. A rate needs a day of
history, and the bench lasts minutes: the oldest archive is dated back. Bytes are those of compsize(8), the most that
the journal took at the end of any boot.
"""

from __future__ import annotations

import sys

from tests.bench.boots import count_boots
from tests.bench.figures import Option, count_is, mib, parser, show, start
from tests.guest.host import Guest, missing
from tests.guest.steps import INSTALL, dated_back, eventually, lend_checkout
from tests.volumes import disk_bytes

LIMIT = "[Journal]\nSystemMaxUse=64M\nSystemMaxFileSize=4M\n"
QUICK = (
    "[Defrag]\nMinReclaim=64K\n[Watch]\nSettleSec=1s\nNocowSettleSec=1s\n"
    "[Window]\nPressureMax=100%\n[Budget]\nBytesPerDay=infinity\n"
)
MESSAGES = 12_000


def wait_until_compacted(guest: Guest) -> None:
    """Wait until the plan has no action for archives.

    Raises: RuntimeError after 5 minutes.
    """
    if not eventually(lambda: '"actions":[]' in guest.run("journalkeeper", "plan", "--archived", "-j").stdout, 300):
        raise RuntimeError("the archives are not compacted after 5 min")


def live(guest: Guest, most: int, enough: int, *, keeper: bool) -> tuple[int, int]:
    """Boot and log until `enough` boots are kept, journald deletes a boot, or `most` boots were made.

    Return the number of boots kept, and the most bytes that the journal took.
    """
    kept: list[int] = []
    used_bytes = 0
    while len(kept) < most:
        guest.age(1, MESSAGES)
        if keeper:
            wait_until_compacted(guest)
        guest.run("sync", "-f", "/var/log/journal")
        used_bytes = max(used_bytes, disk_bytes(*guest.journal.iterdir()))
        kept.append(count_boots(guest))
        print(f"boot {len(kept)}: {kept[-1]} boots kept, {mib(used_bytes)} on the disk", file=sys.stderr)
        if kept[-1] >= enough or kept[-1] in kept[:-1]:
            break
        guest.reboot()
    return max(kept), used_bytes


OPTIONS = {"boots": Option(60, "at most"), "release": Option("bookworm", "of Debian")}


def main() -> None:
    """Measure, and print the table."""
    asked = start(parser(__doc__, OPTIONS), missing)
    with Guest(asked.release) as guest:
        place = guest.root / "etc/systemd/journald.conf.d/10-limit.conf"
        place.parent.mkdir(exist_ok=True)
        place.write_text(LIMIT)
        (guest.root / "etc/journalkeeper.conf").write_text(QUICK)
        guest.boot()
        kept, used_bytes = live(guest, asked.boots, asked.boots, keeper=False)
        lend_checkout(guest)
        guest.run(INSTALL)
        wait_until_compacted(guest)
        with dated_back(guest):
            notes = guest.run("journalkeeper", "retention", "--apply").stdout.splitlines()
        guest.run("systemctl", "restart", "systemd-journald")
        wanted = min(4 * kept, kept + asked.boots - 1)
        kept_after, used_after = live(guest, asked.boots, wanted, keeper=True)
        guest.run("journalctl", "--verify", "--quiet")
    rows = [
        count_is("boots kept, or more", min(kept_after, wanted), wanted),
        count_is("MiB more on the disk", max(0, used_after - used_bytes) >> 20, 0),
    ]
    sizes = f"{mib(used_bytes)} before and {mib(used_after)} after"
    show("Retention", [*notes, f"boots kept: {kept} before, {kept_after} after; on the disk: {sizes}"], rows)


if __name__ == "__main__":
    main()
