# SPDX-License-Identifier: LGPL-2.1-or-later
"""Measure what journald and loggers wait for while the service works in the flush windows, and what it uses.

    sudo python -m tests.bench.windows flushes               # 9 minutes
    sudo python -m tests.bench.windows flushes --minutes 1 --extents 800
    sudo python -m tests.bench.windows intake --rate 30 --interval 60
    sudo python -m tests.bench.windows quiet --help          # what an arm measures, and its options

Private journalds are under the same load at the same time, each on its own volume (tests/bench/loaded.py); the service
runs next to some of them. The extents of an active file are counted once a second. Bytes are those that the volume's
device was given. The intake delay is journald's own time of an entry less that at which the kernel got it
(_SOURCE_REALTIME_TIMESTAMP).
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Final

from journalkeeper.model.units import quantile
from tests.bench.figures import (
    Figure,
    Option,
    add_options,
    at_least,
    at_most,
    count_is,
    mib,
    parser,
    show,
    side_by_side,
    start,
)
from tests.bench.loaded import COLD_LINES, Beside, Life, alone, live, make_bed, trace
from tests.bench.service import CONFIG, DATACOW, age, every_second, serving, settle
from tests.daemon import Daemon, memory_kib
from tests.load import Load


def flushes(asked: Namespace) -> None:
    """Compare an active datacow file with the service and without: extents, bytes, fsyncs, and what overlaps them."""
    beside = {"with": trace(DATACOW + asked.config), "without": alone}
    ours, theirs = side_by_side(beside, lambda name: live(asked, beside[name], rest=True)).values()
    took, took_without = ours.fsync_ms(), theirs.fsync_ms()
    notes = [
        f"{_describe_load(asked)}, {mib(ours.logged_bytes)} logged, {mib(ours.our_bytes)} rewritten",
        f"with: {_describe(ours)}",
        f"without: {_describe(theirs)}",
    ]
    figures = [
        at_least("flushes of journald's timer", ours.flushes, 25),
        at_least("writing calls of the service", len(ours.pieces), 1),
        count_is("of them overlapping a flush", ours.count_overlaps(), 0),
        at_most("extents at last, with / without", ours.last / theirs.last, 0.1),
        at_most(
            "journald's fsyncs, median, with / without", statistics.median(took) / statistics.median(took_without), 1.1
        ),
        at_most("journald's fsyncs, worst, with / without", max(took) / max(took_without), 1.1),
    ]
    show("Flushes", notes, figures)


def _describe_load(asked: Namespace) -> str:
    limit = f", {asked.iops} IOPS" if asked.iops else ""
    return f"{asked.rate:g} messages/s for {asked.minutes:g} min, SyncIntervalSec={asked.interval:g}s{limit}"


def _describe(one: Life) -> str:
    took = one.fsync_ms()
    return (
        f"{one.first} extents at first, {one.last} at last, mean {statistics.mean(one.each):.0f}; {one.rotations} "
        f"rotations; {len(took)} fsyncs, median {statistics.median(took):.0f} ms, worst {max(took):.0f} ms"
    )


def nocow(asked: Namespace) -> None:
    """Compare NOCOW with datacow files, both with the service, without snapshots: extents, waits, and bytes."""
    configs = {"nocow": "[Nocow]\nNocow=yes\n", "datacow": DATACOW}

    def live_as(name: str) -> Life:
        return live(asked, trace(configs[name] + asked.config), rest=True, nocow=name == "nocow")

    notes, figures = [_describe_load(asked)], []
    for name, one in side_by_side(configs, live_as).items():
        notes.append(f"{name}: {_describe(one)}")
        figures += [
            Figure(f"{name}: extents of the active file, mean", f"{statistics.mean(one.each):.0f}"),
            Figure(f"{name}: extents at last", str(one.last)),
            Figure(f"{name}: cold journalctl -n {COLD_LINES}, s", f"{one.cold_s:.2f}"),
            Figure(f"{name}: intake delay p99, s", f"{quantile(sorted(one.intake_s), 990):.2f}"),
            Figure(f"{name}: intake delay, worst, s", f"{max(one.intake_s):.2f}"),
            Figure(f"{name}: journald's fsyncs, median, ms", f"{statistics.median(one.fsync_ms()):.0f}"),
            Figure(f"{name}: worst fsync, ms", f"{max(one.fsync_ms()):.0f}"),
            Figure(f"{name}: written by us / logged", f"{one.our_bytes / one.logged_bytes:.3g}"),
            Figure(f"{name}: device's bytes / logged", f"{one.device_bytes / one.logged_bytes:.3g}"),
        ]
    show("NOCOW and datacow, with the service", notes, figures)


def intake(asked: Namespace) -> None:
    """Compare how long loggers wait for journald on a slow volume, with the service and without."""
    beside: dict[str, Beside] = {"with": lambda place: serving(place, DATACOW + asked.config), "without": alone}
    ours, theirs = side_by_side(beside, lambda name: live(asked, beside[name])).values()
    figures = []
    for name, per_mille in (("p99.9", 999), ("worst", 1000)):
        with_s, without_s = (quantile(sorted(one.intake_s), per_mille) for one in (ours, theirs))
        figures += [
            Figure(f"with: {name}, s", f"{with_s:.2f}"),
            Figure(f"without: {name}, s", f"{without_s:.2f}"),
            at_most(f"{name}, with / without", with_s / without_s, 1.1),
        ]
    show("Intake", [_describe_load(asked), f"with: {_describe(ours)}", f"without: {_describe(theirs)}"], figures)


IDLE_CPU_MS: Final = 10
LOADED_CPU_PERCENT: Final = 0.5
RESIDENT_MIB: Final = 48
PAST_S: Final = 3.0
"""How long after the planned time of a flush the service looks for it."""


def watch(service: Daemon, seconds: float) -> tuple[float, float]:
    """Return the processor seconds that the service uses in so many seconds, and the most MiB that it holds."""
    before_s = service.cpu_s()
    resident_mib = max(memory_kib(service.pid) / 1024 for _ in every_second(seconds))
    return service.cpu_s() - before_s, resident_mib


def quiet(asked: Namespace) -> None:
    """Measure what the service uses while nothing happens, and while much is logged.

    Processor time is that of the scheduler, to the nanosecond (schedstat); resident memory is read every second.
    """
    seconds = asked.minutes * 60
    with make_bed(asked.interval) as place, serving(place, DATACOW + asked.config) as service:
        age(place, asked.extents)
        settle(service)
        # The service's last line is a message, too: until its flush is past, the host is not idle.
        time.sleep(asked.interval + PAST_S)
        place.volume.throttle(asked.iops)
        idle_s, _ = watch(service, seconds)
        with Load(place, asked.rate) as load:
            loaded_s, resident_mib = watch(service, seconds)
    figures = [
        at_most("idle: CPU, ms", idle_s * 1000, IDLE_CPU_MS),
        at_most("loaded: CPU, % of one core", 100 * loaded_s / seconds, LOADED_CPU_PERCENT),
        at_most("loaded: resident at most, MiB", resident_mib, RESIDENT_MIB),
    ]
    show("Quiet", [f"{_describe_load(asked)}: {load.sent} logged; before that as long idle"], figures)


OPTIONS: Final = {
    "rate": Option(100.0, "messages a second"),
    "extents": Option(3000, "of the active file at first"),
    "interval": Option(10.0, "SyncIntervalSec= in seconds"),
    "iops": Option(0, "of each device; 0 for as many as it has"),
    "minutes": Option(5.0, "of load, or of each phase"),
    "config": CONFIG,
}
ARMS: Final[Mapping[Callable[[Namespace], None], Mapping[str, float]]] = {
    flushes: {"rate": 1, "minutes": 8},
    nocow: {},
    intake: {"iops": 500},
    quiet: {"rate": 300, "extents": 1000, "interval": 300, "minutes": 10},
}
"""What each arm measures, and its own defaults. With more messages, appends cancel most flushes (flush_timer.py)."""


def main() -> None:
    """Measure one arm."""
    words = parser(__doc__)
    arms = words.add_subparsers(dest="arm", required=True)
    for arm, own in ARMS.items():
        one = arms.add_parser(arm.__name__, help=arm.__doc__)
        add_options(one, OPTIONS)
        one.set_defaults(measure=arm, **own)
    asked = start(words)
    asked.measure(asked)


if __name__ == "__main__":
    main()
