# SPDX-License-Identifier: LGPL-2.1-or-later

"""What journald and loggers wait for while the service works in the flush windows, and what it uses.

    sudo python -m tests.bench.windows flushes               # 6 minutes
    sudo python -m tests.bench.windows flushes --minutes 1 --extents 800
    sudo python -m tests.bench.windows intake --rate 30 --interval 60  # whole at each flush
    sudo python -m tests.bench.windows intake --starve 1 --iops 150    # a journald that hardly runs
    sudo python -m tests.bench.windows surprise --help       # what an arm measures, and its options

Private journalds are under the same load at the same time, each on a volume of its own (tests/bench/loaded.py);
beside some of them runs the service. The extents of an active file are counted once a second. Bytes are those that
the volume's device was given. The intake delay is what journald itself tells: its own time of an entry less that at
which the kernel got it (_SOURCE_REALTIME_TIMESTAMP). A logger waits longer: until the kernel takes it, which a full
socket does not; so `intake` also counts the delay from the moment at which a message was planned.
"""

from __future__ import annotations

import inspect
import statistics
import sys
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from journalkeeper.model.units import quantile
from tests.bench import surprise
from tests.bench.archive import slowed
from tests.bench.figures import (
    MIB,
    Figure,
    Option,
    add_options,
    at_least,
    at_most,
    count_is,
    mib,
    need_a_bed,
    parser,
    ratio,
    show,
    side_by_side,
)
from tests.bench.loaded import (
    COLD_LINES,
    Beside,
    Life,
    alone,
    flushing,
    live,
    made_whole,
    traced,
    whole_life,
)
from tests.bench.service import CONFIG, DATACOW, age, every_second, serving, settled, use
from tests.load import Load
from tests.trust.services import Quiet
from tests.volumes import extents


def flushes(asked: Namespace) -> None:
    """An active datacow file with the service and without: flushes, extents, bytes, and what overlaps."""
    beside = {"with": traced(DATACOW + asked.config), "without": alone}
    ours, theirs = side_by_side(beside, lambda name: whole_life(live(asked, beside[name], rest=True))).values()
    took, took_without = ours.fsync_ms(), theirs.fsync_ms()
    notes = [
        f"{_load(asked)}, {mib(ours.logged_bytes)} logged",
        f"with: {_extents(ours)}, most {max(ours.each)}; "
        f"{len(ours.pieces)} writing calls, {mib(ours.our_bytes)} rewritten",
        f"without: {_extents(theirs)}",
        f"journald's fsyncs with: {len(took)}, median {statistics.median(took):.2f} ms, worst {max(took):.1f}",
        f"without: {len(took_without)}, median {statistics.median(took_without):.2f} ms, worst {max(took_without):.1f}",
        *(f"overlapping: {overlap}" for overlap in ours.overlaps(ours.pieces)),
    ]
    figures = [
        at_least("flushes of journald's timer", ours.flushes, 25),
        at_least("writing calls of the service", len(ours.pieces), 1),
        count_is("of them overlapping a flush", len(ours.overlaps(ours.pieces)), 0),
        Figure("syncs of its record overlapping a flush", str(len(ours.overlaps(ours.other_syncs)))),
        at_most("extents at last, with / without", ours.last / theirs.last, 0.1),
        Figure("mean extents, with / without", f"{statistics.mean(ours.each) / statistics.mean(theirs.each):.3g}"),
        Figure("written by the service / logged", f"{ours.our_bytes / ours.logged_bytes:.3g}"),
        Figure("device's bytes / logged, with", f"{ours.device_bytes / ours.logged_bytes:.3g}"),
        Figure("device's bytes / logged, without", f"{theirs.device_bytes / theirs.logged_bytes:.3g}"),
        at_most(
            "journald's fsyncs, median, with / without", statistics.median(took) / statistics.median(took_without), 1.1
        ),
        at_most("journald's fsyncs, worst, with / without", max(took) / max(took_without), 1.1),
    ]
    show("Flushes", notes, figures)


def _load(asked: Namespace) -> str:
    limit = f", {asked.iops} IOPS" if asked.iops else ""
    return f"{asked.rate:g} messages/s for {asked.minutes:g} min, SyncIntervalSec={asked.interval:g}s{limit}"


def _extents(one: Life) -> str:
    return f"{one.first} extents at first, {one.last} at last, mean {statistics.mean(one.each):.0f}"


def nocow(asked: Namespace) -> None:
    """NOCOW against datacow files, both with the service, without snapshots: extents, waits of loggers and readers."""
    configs = {"nocow": "[Nocow]\nNocow=yes\n", "datacow": DATACOW}

    def at(name: str) -> Life:
        return live(asked, traced(configs[name] + asked.config), rest=True, nocow=name == "nocow")

    notes, figures = [_load(asked)], []
    for name, one in side_by_side(configs, at).items():
        tenth = max(1, len(one.each) // 10)
        notes.append(f"{name}: extents {one.first} at first, then {' '.join(map(str, one.each[tenth - 1 :: tenth]))}")
        intake_ms, fsync_ms = sorted(1000 * wait for wait in one.intake_s), one.fsync_ms()
        figures += [
            Figure(f"{name}: extents of the active file, mean", f"{statistics.mean(one.each):.0f}"),
            Figure(f"{name}: extents at last", str(one.last)),
            Figure(f"{name}: rotations", str(one.rotations)),
            Figure(f"{name}: cold journalctl -n {COLD_LINES}, s", f"{one.cold_s:.2f}"),
            Figure(f"{name}: intake delay p99, ms", f"{quantile(intake_ms, 990):.2f}"),
            Figure(f"{name}: worst, ms", f"{intake_ms[-1]:.1f}"),
            Figure(f"{name}: journald's fsyncs, median, ms", f"{statistics.median(fsync_ms):.2f}"),
            Figure(f"{name}: worst fsync, ms", f"{max(fsync_ms):.1f}"),
            Figure(f"{name}: written by us / logged", f"{one.our_bytes / one.logged_bytes:.3g}"),
            Figure(f"{name}: device's bytes / logged", f"{one.device_bytes / one.logged_bytes:.3g}"),
        ]
    show("NOCOW and datacow, with the service", notes, figures)


def rare(delays_s: Sequence[float]) -> float:
    """The 99.9th percentile."""
    return quantile(sorted(delays_s), 999)


INTAKE: Final = ("with", "without")


def some_of_intake(text: str) -> list[str]:
    """The journals of `intake` by names with commas.

    Raises: ArgumentTypeError if there is no such one.
    """
    names = text.split(",")
    if not set(names) <= set(INTAKE):
        raise ArgumentTypeError(f"there are {', '.join(INTAKE)}")
    return names


def intake(asked: Namespace) -> None:
    """How long loggers wait for journald on a slow volume: with the service, and without."""
    beside: dict[str, Beside] = {
        "with": lambda place: serving(place, DATACOW + asked.config),
        "without": alone,
    }
    found = side_by_side(asked.arms, lambda name: live(asked, beside[name]), asked.jobs)
    notes = [_load(asked) + (f", journald runs {asked.starve:g}% of each 100 ms" if asked.starve else "")]
    figures = []
    for name, one in found.items():
        length, middle = max(1, round(asked.interval)), len(one.each) // 2
        least = [min(one.each[at : at + length]) for at in range(middle, len(one.each), length)]
        notes.append(f"{name}: {one.first} extents at first, {one.last} after the last flush, "
                     f"in each interval of the second half down to {', '.join(map(str, least))}")  # fmt: skip
        figures += [
            Figure(f"{name}: intake delay p99.9, ms", f"{rare(one.intake_s) * 1000:.1f}"),
            Figure(f"{name}: worst, ms", f"{max(one.intake_s) * 1000:.1f}"),
            Figure(f"{name}: from the planned moment, p99.9, ms", f"{rare(one.planned_s) * 1000:.1f}"),
            Figure(f"{name}: from the planned moment, worst, ms", f"{max(one.planned_s) * 1000:.1f}"),
        ]
    waits_s = {name: one.intake_s for name, one in found.items()}
    if {"with", "without"} <= waits_s.keys():
        ours, theirs = waits_s["with"], waits_s["without"]
        late, theirs_late = ours[len(ours) // 2 :], theirs[len(theirs) // 2 :]
        figures += [
            at_most("p99.9, with / without", rare(ours) / rare(theirs), 1.1),
            at_most("worst, with / without", max(ours) / max(theirs), 1.1),
            at_most("p99.9 of the second half, with / without", rare(late) / rare(theirs_late), 1),
            at_most("worst of the second half, with / without", max(late) / max(theirs_late), 1),
        ]
    show("Intake", notes, figures)


def oneflush(asked: Namespace) -> None:
    """How long loggers wait at one flush of a slow volume: of a file that the service has made whole, and a torn one.

    In each round both files were torn by flushes, and the service has made the one whole. Then, both at once, their
    devices are slow and they are under the same load for one interval of journald's flushes and half of another.
    """
    asked.minutes = asked.interval * 1.5 / 60
    ready: dict[str, Beside] = {"whole": partial(made_whole, config=DATACOW + asked.config), "torn": alone}
    rounds = [side_by_side(ready, lambda name: live(asked, alone, ready=ready[name])) for _ in range(asked.rounds)]
    notes, figures = [f"{_load(asked)}, one flush a round"], []
    worst_s, rare_s = ({name: [take(one[name].intake_s) for one in rounds] for name in ready} for take in (max, rare))
    for name, times_s in worst_s.items():
        before = statistics.median(one[name].first for one in rounds)
        notes.append(f"{name}, worst of each round: {', '.join(f'{worst:.2f}' for worst in times_s)} s")
        figures.append(Figure(f"{name}: extents before the flush", f"{before:.0f}"))
        figures.append(Figure(f"{name}: worst, ms", f"{statistics.median(times_s) * 1000:.1f}"))
    figures += [
        at_most("p99.9, whole / torn", ratio(rare_s["whole"], rare_s["torn"]), 1),
        at_most("worst, whole / torn", ratio(worst_s["whole"], worst_s["torn"]), 1),
    ]
    show("One flush", notes, figures)


class Phase(NamedTuple):
    """What the service used in a while: wakeups beside the watchdog's, CPU, and its memory each second."""

    wakes: int
    cpu_s: float
    resident_bytes: list[int]


IDLE_CPU_MS: Final = 10
LOADED_CPU_PERCENT: Final = 0.5
RESIDENT_MIB: Final = 48
GROWTH_KIB: Final = 256
"""Less than this is the allocator's business: a leak of a hundred bytes a message would be 9 MiB in 5 min."""

PAST_S: Final = 3.0
"""How long after a flush is due it has been looked for."""


def used(service: Quiet, seconds: float) -> Phase:
    """Watch the service for so long."""
    before, alive = use(service.pid), len(service.alive_s)
    each = [use(service.pid).resident_bytes for _ in every_second(seconds)]
    after = use(service.pid)
    return Phase(after.wakes - before.wakes - (len(service.alive_s) - alive), after.cpu_s - before.cpu_s, each)


def growth_bytes(resident_bytes: list[int]) -> int:
    """By how much the last tenth of the second half is above its first tenth, by their medians."""
    half = resident_bytes[len(resident_bytes) // 2 :]
    tenth = max(1, len(half) // 10)
    return round(statistics.median(half[-tenth:]) - statistics.median(half[:tenth]))


def quiet(asked: Namespace) -> None:
    """What the service uses while nothing happens, and while much is logged.

    A wakeup is a thread that went to sleep of its own accord (voluntary_ctxt_switches): one that
    never does has not been awake. The watchdog is fed by systemd's rules for WatchdogSec=3min, and
    each time it is fed is counted here and taken off. Processor time is that of the scheduler, to
    the nanosecond (schedstat); memory is what is resident, read every second.
    """
    seconds = asked.minutes * 60
    with flushing(asked.interval) as place:
        with serving(place, DATACOW + asked.config) as service:
            age(place, asked.extents)
            settled(service)
            # The service's last line is a message, too: until its flush is past, the host is not idle.
            time.sleep(asked.interval + PAST_S)
            with slowed(place.volume, asked.iops):
                idle = used(service, seconds)
                with Load(place, asked.rate) as load:
                    loaded = used(service, seconds)
        found = extents(place.journald.active)
    notes = [
        f"{asked.minutes:g} min idle: {mib(max(idle.resident_bytes))} resident",
        f"{_load(asked)}: {load.sent} logged, {mib(load.sent_bytes)}; {found} extents at the end",
    ]
    figures = [
        count_is("idle: wakeups other than the watchdog", idle.wakes, 0),
        at_most("idle: CPU, ms", idle.cpu_s * 1000, IDLE_CPU_MS),
        Figure("loaded: wakeups a second", f"{loaded.wakes / seconds:.2f}"),
        at_most("loaded: CPU, % of one core", 100 * loaded.cpu_s / seconds, LOADED_CPU_PERCENT),
        at_most("loaded: resident at most, MiB", max(loaded.resident_bytes) / MIB, RESIDENT_MIB),
        at_most("loaded: growth in the second half, KiB", growth_bytes(loaded.resident_bytes) / 1024, GROWTH_KIB),
    ]
    show("Quiet", notes, figures)


class Arm(NamedTuple):
    """One arm: what it does, which its docstring says, and its options."""

    measure: Callable[[Namespace], None]
    options: Mapping[str, Option]


def under_load(*, rate: float = 100, extents: int = 3000, interval: float = 10, iops: int = 0,
               **more: Option) -> dict[str, Option]:  # fmt: skip
    """The options of an arm by their defaults, and more of them."""
    return {
        "rate": Option(float(rate), "messages a second"),
        "extents": Option(extents, "of the active file at first"),
        "interval": Option(float(interval), "SyncIntervalSec= in seconds"),
        "iops": Option(iops, "of each device; 0 for as many as it has"),
        "config": CONFIG,
        **more,
    }


MINUTES: Final = Option(5.0, "of load")
JOBS: Final = (
    "journals at a time; 1: pressure is the machine's, and who waits beside one makes the service of another wait, too"
)
ARMS: Final[Mapping[str, Arm]] = {
    "flushes": Arm(flushes, under_load(minutes=MINUTES)),
    "nocow": Arm(nocow, under_load(minutes=MINUTES)),
    "intake": Arm(
        intake,
        under_load(
            iops=500,
            minutes=MINUTES,
            arms=Option(",".join(INTAKE), "journals that are compared", some_of_intake),
            starve=Option(None, "of each 100 ms, in percent: journald runs no longer", float),
            jobs=Option(len(INTAKE), JOBS),
        ),
    ),
    "oneflush": Arm(
        oneflush,
        under_load(rate=30, extents=4400, interval=30, iops=500, rounds=Option(7, "of which the medians are shown")),
    ),
    "quiet": Arm(quiet, under_load(rate=300, extents=1000, interval=300, minutes=Option(10.0, "of each phase"))),
    "surprise": Arm(surprise.measure, surprise.OPTIONS),
}


def main() -> int:
    """Measure one arm."""
    words = parser(__doc__)
    arms = words.add_subparsers(dest="arm", required=True)
    for name, arm in ARMS.items():
        doc = inspect.cleandoc(arm.measure.__doc__ or "")
        one = arms.add_parser(name, help=doc.partition("\n")[0], description=doc, formatter_class=words.formatter_class)
        add_options(one, arm.options)
    asked = words.parse_args()
    need_a_bed(words)
    ARMS[asked.arm].measure(asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
