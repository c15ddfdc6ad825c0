# SPDX-License-Identifier: LGPL-2.1-or-later
# ruff: noqa: T201 - a bench prints
"""How many boots a host keeps in the same bytes, before and after `journalkeeper retention --apply`.

    sudo unshare --mount python -m tests.bench.retention [--boots 60] [--mib 64] [--release trixie]

journald may take 64 MiB, in files of a 16th, and each boot logs some 8. Archives so small do not pay by default:
MinReclaim=64K. First without journalkeeper, until journald deletes; then with it. A rate is computed from a day of
history on, and the bench lasts minutes: the oldest archive is dated back.
Bytes are those that compsize(8) counts, the most that the journal took at the end of any boot.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from journalkeeper.model import MIB
from tests.guest.host import Guest, missing
from tests.guest.steps import INSTALL, dated_back, eventually, lend_checkout
from tests.volumes import disk_bytes

LIMIT = "[Journal]\nSystemMaxUse={}M\nSystemMaxFileSize={}M\n"
QUICK = (
    "[Defrag]\nMinReclaim=64K\n[Watch]\nSettleSec=1s\nNocowSettleSec=1s\n"
    "[Window]\nPressureMax=100%\n[Budget]\nBytesPerDay=infinity\n"
)
MESSAGES = 12_000


def boots(guest: Guest) -> int:
    """How many boots the journal tells of."""
    return len(guest.run("journalctl", "--list-boots", "--no-pager", "--quiet").stdout.splitlines())


def taken(guest: Guest) -> int:
    """What the journal takes on the disk."""
    guest.run("sync", "-f", "/var/log/journal")
    return sum(disk_bytes(path) for path in guest.journal.iterdir())


def compacted(guest: Guest) -> bool:
    """Whether there is nothing left to do."""
    return '"actions":[]' in guest.run("journalkeeper", "plan", "--archived", "-j").stdout


def live(guest: Guest, most: int, enough: Callable[[int], bool], *, keeper: bool) -> tuple[int, int]:
    """Boot and log until `enough` boots are kept or `most` were made; the boots kept, and the most bytes taken."""
    worst = kept = best = 0
    for number in range(most):
        guest.age(1, MESSAGES)
        if keeper and not eventually(lambda: compacted(guest), 120):
            raise SystemExit("the archives are not compacted after 2 min")
        before, kept, now = kept, boots(guest), taken(guest)
        worst, best = max(worst, now), max(best, kept)
        print(f"  boot {number + 1}: {kept} boots kept, {now / MIB:.1f} MiB on the disk", flush=True)
        if enough(kept) or kept < before:
            break
        guest.reboot()
    return best, worst


def main() -> int:
    """Print the figures; 1 if more bytes were taken, or a boot was lost before four times as many were kept."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--boots", type=int, default=60)
    words.add_argument("--mib", type=int, default=64)
    words.add_argument("--release", default="bookworm")
    asked = words.parse_args()
    if reason := missing():
        raise SystemExit(reason)
    with Guest(asked.release) as guest:
        place = guest.root / "etc/systemd/journald.conf.d/10-limit.conf"
        place.parent.mkdir(exist_ok=True)
        place.write_text(LIMIT.format(asked.mib, asked.mib // 16))
        (guest.root / "etc/journalkeeper.conf").write_text(QUICK)
        guest.boot()
        print("without journalkeeper:")
        last = [0, 0]

        def full(kept: int) -> bool:
            last[:] = [last[1], kept]
            return kept > 1 and last[0] == last[1]

        kept, taken_before = live(guest, asked.boots, full, keeper=False)
        lend_checkout(guest)
        guest.run(INSTALL)
        if not eventually(lambda: compacted(guest), 300):
            raise SystemExit("the archives are not compacted after 5 min")
        with dated_back(guest):
            print(guest.run("journalkeeper", "retention").stdout, end="")
            print(guest.run("journalkeeper", "retention", "--apply").stdout, end="")
        guest.run("systemctl", "restart", "systemd-journald")
        print("with its limit for journald:")
        kept_after, taken_after = live(guest, asked.boots, lambda now: now >= 4 * kept, keeper=True)
        guest.run("journalctl", "--verify", "--quiet")
    print(f"boots kept: {kept} -> {kept_after}; on the disk {taken_before / MIB:.1f} -> {taken_after / MIB:.1f} MiB")
    return int(kept_after < min(4 * kept, kept + asked.boots) or taken_after > taken_before)


if __name__ == "__main__":
    sys.exit(main())
