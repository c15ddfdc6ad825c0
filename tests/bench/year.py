# SPDX-License-Identifier: LGPL-2.1-or-later
# ruff: noqa: T201 - a bench prints
"""Measure a year of hosts on which snapper makes and deletes snapshots, and journald deletes archives.

    sudo TMPDIR=/dev/shm python -m tests.bench.year --svg year.svg
    sudo python -m tests.bench.year --days 4 --every 2 tuned own

Six hosts take an hour for a year. They live side by side: "untouched", "nocow" and "service" of
tests.bench.boots; "tuned" is a service whose admin called `retention --apply` after TUNED days; "own" and "own-service"
have the journal in a NOCOW subvolume of its own.

A day has four parts: some flushes, a rest, in which the service acts until it has nothing left to do, or waits for what
a real day brings, and a snapshot of snapper's timeline. At its end snapper takes the two
snapshots of an apt command and makes its three clean-ups with the limits of its default configuration, and the host
reboots. The first boot, the last, and one in --every days are from a cold, throttled disk, and are measured. journald
begins a new file about every two days, and a boot is slower the older its file is: --every is no multiple of that.

Time is simulated: snapper, whose clean-up goes by the age of snapshots, runs under libfaketime with the hour of the
simulated year. The service and journald have the real clock, because libfaketime would change the times of all files.
A day takes seconds, so two rotations are as many seconds apart as a quarter of a day takes (RotationsPerDay=), and
files settle in seconds. What the service does once a day happens once in the whole bench.

"Written" is what the block device wrote since the first day: the journal, the filesystem's metadata, the snapshots, and
the files of each boot. "Logged" are the messages of the flushes, in the form of `journalctl --output=export`; those of
boots and of the service are not counted. "Written by itself" is what the history of the service contains. An archive is
rewritten twice if its name is twice in the history as done.

After Ctrl-C, or if a host fails, the table has the boots until then.
"""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Mapping
from math import ceil, inf
from pathlib import Path
from threading import Barrier
from typing import Any, NamedTuple

from journalkeeper.model.errors import KeeperError
from journalkeeper.probe.scratch_volume import run
from journalkeeper.report.charts import ROWS, Chart, Layer
from tests.bench.boots import MESSAGES, OWN, Strategy, boot_cold, prepare, read_cold, read_outcomes
from tests.bench.figures import MIB, Figure, Option, at_least, at_most, count_is, parser, show, side_by_side, start
from tests.guest.host import Guest, missing
from tests.volumes import disk_bytes

HOSTS = {
    "untouched": "#c33", "nocow": "#888", "service": "#06c", "tuned": "#083", "own": "#a60", "own-service": "#909"
}  # fmt: skip
"""The hosts, and the colours of their lines."""

FLUSH_KIB = 38.5
"""The size of a flush's messages in a journal file."""

HURRIED = (
    "[Watch]\nSettleSec=1s\nNocowSettleSec=1s\n[Window]\nMarginSec=200ms\nPressureMax=100%\n"
    "[Budget]\nRotationsPerDay=50000\nBytesPerDay=infinity\n"
)
FILES = 16
"""The full files that journald keeps: by default 32 on a disk of 40 GiB or more, and 8 on one below 10 GiB."""

MOST_DAYS = 13
"""The days for which the chart has room."""

AGER = Path(__file__).parents[1] / "guest/ager.py"

TUNED = 40
"""journald's limit is reached."""

FULL = 50

LIMITS = {"service": (0.30, 0.85), "tuned": (0.25, 0.75), "own-service": (0.05, inf)}
"""The most disk space and written bytes of a host, in parts of those of "untouched"."""

TUNE = """
"$(dirname "$(readlink -f /usr/bin/journalkeeper)")/python3" -I -c 'import sys
from journalkeeper.cli import main
from journalkeeper.report import retention
retention.LEAST_SPAN_US = 1  # the year lasts minutes
sys.exit(main(["retention", "--apply"]))'
systemctl reload-or-restart systemd-journald
"""

TOOLS = """
apt-get -q update
apt-get install -qy --no-install-recommends -o Dpkg::Options::=--force-unsafe-io snapper faketime
systemctl mask --now snapper-boot.timer snapper-timeline.timer snapper-cleanup.timer
snapper --no-dbus --config root create-config /
"""
DAY = """
busy() {
    [ -e /etc/journalkeeper.conf ] && busctl get-property org.journalkeeper1 /org/journalkeeper1 \\
        org.journalkeeper1.Manager State StateReason | grep -Eq '"working"|SettleSec= has|next flush'
}
snap() {
    LD_PRELOAD=/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1 FAKETIME="+${hour}h" \\
        FAKETIME_DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1 snapper --no-dbus --config root "$@"
}
for part in 0 1 2 3; do
    hour=$(($1 * 24 + part * 6))
    python3 /opt/ager.py $2 $3
    sleep $4
    for _ in {1..50}; do
        busy || break
        sleep 0.2
    done
    snap create --cleanup-algorithm timeline --description timeline
done
number=$(snap create --type pre --print-number --cleanup-algorithm number --description apt)
echo "$1" >/opt/day
snap create --type post --pre-number "$number" --cleanup-algorithm number --description apt
for algorithm in number timeline empty-pre-post; do snap cleanup $algorithm; done
"""
"""A day: its number, the flushes in a quarter of it, the messages of a flush, the rest after them.

snapper does what its timers and its hook of apt would do.
"""


class Look(NamedTuple):
    """A measured boot after `day` days: the extents that it found, the boots and the files in the journal, the
    snapshots, the disk usage of the journal in all of them, and what was written and logged since the first day.
    `read_s` is the time of a cold `journalctl -n 10` before the last boot, 0 before the others.
    """

    day: int
    userspace_s: float
    extents: int
    boots_kept: int
    files: int
    snapshots: int
    disk_mib: float
    written_mib: float
    logged_mib: float
    read_s: float


def live(name: str, asked: Namespace, looks: list[Look], outcomes: list[dict[str, Any]], together: Barrier) -> None:
    """Let one host live through the year, and fill `looks` and, on the host with the service, `outcomes`.

    The hosts wait for each other before each measured boot. When `together` is broken, all end there or at once.
    """
    serves = name in {"service", "tuned", "own-service"}
    setup = OWN + TOOLS if "own" in name else TOOLS
    strategy = Strategy(name, name == "nocow", setup, config=HURRIED if serves else None)
    file_kib = round(max(300, asked.days) / 10 * asked.flushes * FLUSH_KIB / FILES)
    with Guest(asked.release, nocow=strategy.nocow, size="64G") as guest:
        prepare(guest, strategy, f"SystemMaxUse={FILES * file_kib}K\nSystemMaxFileSize={file_kib}K\n")
        guest.copy_in(AGER, "/opt/ager.py")
        before_bytes, tuned = guest.volume.count_written_bytes(), name != "tuned"
        for day in range(asked.days):
            if not tuned and day >= TUNED:
                tuned = guest.run("bash", "-c", TUNE, check=False).returncode == 0
            guest.run("bash", "-euc", DAY, "day", *map(str, (day, asked.flushes // 4, MESSAGES, asked.rest / 4)))
            guest.poweroff()
            run("fstrim", guest.volume.mountpoint)  # or the image keeps what the filesystem has freed
            if day % asked.every and day != asked.days - 1 and not together.broken:
                guest.boot()
                continue
            together.wait()
            read_s = read_cold(guest, asked.iops) if day == asked.days - 1 else 0.0  # minutes on "untouched"
            boot = boot_cold(guest, asked.iops)
            copies = list(guest.root.glob(".snapshots/*/snapshot/var/log/journal"))
            sample = guest.shell("journalctl --identifier=ager --lines=100 --output=export --quiet")
            looks.append(
                Look(
                    day + 1,
                    boot.userspace_s,
                    boot.extents,
                    boot.kept,
                    len(list(guest.journal.iterdir())),
                    len(copies),
                    disk_bytes(guest.root / "var/log/journal", *copies) / MIB,
                    (guest.volume.count_written_bytes() - before_bytes) / MIB,
                    (day + 1) * (asked.flushes // 4 * 4) * MESSAGES * len(sample) / 100 / MIB,
                    read_s,
                )
            )
            print(f"{name}: {looks[-1]}", file=sys.stderr)
            if strategy.config is not None:
                outcomes[:] = read_outcomes(guest)


def live_or_end(name: str, together: Barrier, work: Callable[[], None]) -> None:
    """Call `work`. If it fails, print the error message and end the year of all hosts."""
    try:
        work()
    except (RuntimeError, KeeperError, OSError, subprocess.SubprocessError) as error:
        together.abort()
        print(f"{name}: {error!r}", file=sys.stderr)


def is_compaction(outcome: dict[str, Any]) -> bool:
    """Return whether an archive was compacted: its name has an "@", and so has that of no active file."""
    return outcome["result"] == "done" and "@" in Path(outcome["path"]).name


def describe_looks(name: str, looks: list[Look]) -> list[str]:
    """Return a line for each quantity of a host, with its value at each measured boot."""
    columns = zip(Look._fields, zip(*looks, strict=True), strict=True)
    return [f"{name:9}  {what:11}  {' '.join(f'{value:>6.4g}' for value in values)}" for what, values in columns]


def judge(name: str, looks: list[Look], theirs: list[Look]) -> list[Figure]:
    """Return the rows of one host. `theirs` are the boots of the host "untouched"."""
    times_s, last, other = [look.userspace_s for look in looks], looks[-1], theirs[-1]
    early_s, late_s = ([look.userspace_s for look in looks if (look.day > FULL) is late] for late in (False, True))
    disk, written = LIMITS.get(name, (inf, inf))
    grown = statistics.median(late_s) / statistics.median(early_s) if early_s and late_s else 0
    rows = [
        Figure("first boot, userspace, s", f"{times_s[0]:.2f}"),
        Figure("median boot", f"{statistics.median(times_s):.2f}"),
        at_most("median boot at the limit / before", grown, 1.15 if name in LIMITS else inf),
        at_most("slowest / first", max(times_s) / times_s[0], 1.5 if name in LIMITS else inf),
        Figure("written / logged", f"{last.written_mib / last.logged_mib:.3g}"),
        at_most("written / untouched", last.written_mib / other.written_mib, written),
        at_most("disk / untouched", last.disk_mib / other.disk_mib, disk),
        at_least(
            "boots kept - untouched",
            min(a.boots_kept - b.boots_kept for a, b in zip(looks, theirs, strict=True)),
            0 if name in LIMITS else -inf,
        ),
        at_least("boots kept / untouched, last", last.boots_kept / other.boots_kept, 3 if name == "tuned" else 0),
    ]
    if other.read_s:
        limit = 1.2 if name == "tuned" else inf
        rows.append(at_most("cold journalctl -n 10 / untouched", last.read_s / other.read_s, limit))
    return [Figure(f"{name}: {row.what}", row.measured, *(() if "inf" in row.asked else row[2:])) for row in rows]


def draw(looks: Mapping[str, list[Look]]) -> str:
    """Return an SVG of the seconds of each measured boot, with a line for each host."""
    days = [look.day for look in looks["untouched"]]
    layers = [Layer(HOSTS[name], name, tuple(look.userspace_s for look in ours)) for name, ours in looks.items()]
    step = ceil(max(height or 0 for layer in layers for height in layer.heights) / 4)
    chart = Chart(days, tuple((number * step, f"{number * step} s") for number in range(5)), tuple(layers))
    wide = 630 / len(days)
    text = '<text x="{:.0f}" y="{:.0f}" fill="{}">{}</text>'.format
    parts = [text(-36, chart.get_y(height) + 4, "#666", label) for height, label in chart.levels]
    labelled = list(enumerate(days))[:: ceil(len(days) / MOST_DAYS)]
    parts += [text(wide * place, ROWS + 16, "#666", f"day {day}") for place, day in labelled]
    parts += [text(100 * place, -14, layer.css, layer.name) for place, layer in enumerate(layers)]
    for layer in layers:
        points = " ".join(f"{wide * place:.0f},{chart.get_y(s or 0):.0f}" for place, s in enumerate(layer.heights))
        parts.append(f'<polyline fill="none" stroke="{layer.css}" stroke-width="1.5" points="{points}"/>')
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="-40 -30 680 220" font-family="sans-serif" font-size="11">'
    return "\n".join([head, *parts, "</svg>\n"])


OPTIONS = {
    "release": Option("bookworm", "of Debian"),
    "days": Option(365, "of the year"),
    "flushes": Option(96, "a day"),
    "rest": Option(2.0, "seconds of a day"),
    "every": Option(7, "days between measured boots"),
    "iops": Option(150, "of the disk during a measured boot; 0 for as many as it has"),
    "svg": Option("", "the file for a chart of the measured boots"),
}


def main() -> None:
    """Measure, and print the table."""
    words = parser(__doc__, OPTIONS)
    words.add_argument(
        "host", nargs="*", default=(), choices=[*HOSTS, ()], help="beside untouched (default: nocow service)"
    )
    asked = start(words, missing)
    names = dict.fromkeys(("untouched", *(asked.host or ("nocow", "service"))))
    looks: dict[str, list[Look]] = {name: [] for name in names}
    outcomes: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    together = Barrier(len(looks))
    signal.signal(signal.SIGINT, lambda *_: together.abort())
    side_by_side(
        looks,
        lambda name: live_or_end(name, together, lambda: live(name, asked, looks[name], outcomes[name], together)),
    )
    boots = min(map(len, looks.values()))
    if not boots:
        sys.exit(1)
    looks = {name: ours[:boots] for name, ours in looks.items()}
    ours = {name: found for name, found in outcomes.items() if found}
    done = Counter((name, one["path"]) for name, found in ours.items() for one in filter(is_compaction, found))
    notes = [
        f"{asked.release}, {asked.days} days of {asked.flushes} flushes, {asked.iops} IOPS at timed boots",
        *(line for name, seen in looks.items() for line in describe_looks(name, seen)),
    ]
    rows = [
        *(row for name, seen in looks.items() for row in judge(name, seen, looks["untouched"])),
        *(
            Figure(
                f"{name}: written by itself / logged",
                f"{sum(one['bytes_written'] for one in found) / MIB / looks[name][-1].logged_mib:.3g}",
            )
            for name, found in ours.items()
        ),
        count_is("files rewritten twice", sum(count > 1 for count in done.values()), 0),
    ]
    show("A year", notes, rows)
    if asked.svg:
        Path(asked.svg).write_text(draw(looks))


if __name__ == "__main__":
    main()
