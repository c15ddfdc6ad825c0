# SPDX-License-Identifier: LGPL-2.1-or-later
# ruff: noqa: T201 - a bench prints
"""A host's page after so many boots, of which the later ones were journalkeeper's: is the change plain?

    sudo unshare --mount python -m tests.bench.first_chart --out /tmp/page.html
    sudo unshare --mount python -m tests.bench.first_chart --boots 20 --install-at 10 --iops 150 --out /tmp/page.html

Each boot is from a cold, throttled disk, after flushes of messages, as in tests.bench.boots. `report` runs on the host
itself, and the page is copied out. What it says of each boot is printed beside what systemd-analyze said then.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

from tests.bench.boots import Boot, cold_boot
from tests.bench.figures import at_most, parser, show
from tests.guest.host import Guest, missing
from tests.guest.steps import INSTALL, lend_checkout

PAGE = "/root/page.html"


def live(guest: Guest, boots: int, install_at: int, flushes: int, iops: int) -> list[Boot]:
    """Let a host boot so often; it is given journalkeeper before the boot `install_at`, counted from 0."""
    place = guest.root / "etc/systemd/journald.conf.d"
    place.mkdir(exist_ok=True)
    (place / "bench.conf").write_text("[Journal]\nSyncIntervalSec=5s\n")
    lend_checkout(guest)
    guest.boot()
    found = []
    for number in range(boots):
        if number == install_at:
            guest.shell(INSTALL, timeout_s=900)
        guest.age(flushes)
        time.sleep(8)
        guest.poweroff()
        found.append(cold_boot(guest, iops))
        print(f"boot {number + 1}: {found[-1]}", file=sys.stderr)
    return found


def main() -> int:
    """Let it live, write the page, and compare."""
    words = parser(__doc__)
    words.add_argument("--boots", type=int, default=20, help="(default: %(default)s)")
    words.add_argument("--install-at", type=int, default=10, help="before which boot (default: %(default)s)")
    words.add_argument("--flushes", type=int, default=60, help="between boots (default: %(default)s)")
    words.add_argument("--iops", type=int, default=150, help="of the disk during a boot (default: %(default)s)")
    words.add_argument("--release", default="bookworm", help="of Debian (default: %(default)s)")
    words.add_argument("--out", type=Path, required=True, metavar="FILE", help="where to copy the page")
    asked = words.parse_args()
    if reason := missing():
        words.exit(1, f"first_chart: {reason}\n")
    with Guest(asked.release, size="16G") as guest:
        found = live(guest, asked.boots, asked.install_at, asked.flushes, asked.iops)
        guest.shell(f"journalctl --sync; journalkeeper report -o {PAGE} --force")
        shutil.copy(guest.root / PAGE.lstrip("/"), asked.out)
        print(json.dumps([boot._asdict() for boot in found]))
        before, since = found[: asked.install_at], found[asked.install_at + 1 :]
        figures = [
            at_most("last boot since / last before", since[-1].userspace_s / before[-1].userspace_s, 0.5),
            at_most("the page, KiB", asked.out.stat().st_size / 1024, 500),
        ]
    show("Boots before and since, on one page", [f"{len(found)} boots at {asked.iops} IOPS"], figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
