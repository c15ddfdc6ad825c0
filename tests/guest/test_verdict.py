# SPDX-License-Identifier: LGPL-2.1-or-later
"""The verdict on a booted host: status, doctor, the bus and the metrics agree during each trouble and after it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from journalkeeper.bus import names
from journalkeeper.health.finding import word
from journalkeeper.health.rules import HEALTH
from tests.guest import steps
from tests.guest.conftest import datacow_guest
from tests.guest.host import Guest
from tests.guest.steps import eventually

pytestmark = [pytest.mark.guest, pytest.mark.root, pytest.mark.slow]

UNIT = "journalkeeper.service"
COLLECTOR = "/var/lib/prometheus/node-exporter"
QUICK = f"[Watch]\nSettleSec=1s\n[Nocow]\nNocow=no\n[Window]\nPressureMax=100%\n[Metrics]\nTextfile={COLLECTOR}\n"
WORDS = frozenset(map(word, HEALTH))
STATUS_S = 4.0
"""How long `status` may take on a loaded machine, where starting Python alone takes a second."""


class Views(NamedTuple):
    """The verdict in each place that shows it.

    `reasons` are the words of `status -j`, `doctor` those of the problems that doctor finds by the same rules. `bus` is
    the property Health, and `metric` journalkeeper_healthy; both are None where no service answers.
    """

    exit_status: int
    line: str
    reasons: list[str]
    doctor: list[str]
    bus: str | None = None
    metric: str | None = None


def look(guest: Guest) -> Views:
    """Ask each place once."""
    status = guest.run("journalkeeper", "status", check=False)
    document = json.loads(guest.run("journalkeeper", "status", "-j", check=False).stdout)
    doctor = json.loads(guest.run("journalkeeper", "doctor", "-j").stdout)["findings"]
    found = [one["rule"] for one in doctor if one["severity"] == "problem" and one["rule"] in WORDS]
    bus = health_on_the_bus(guest)
    text = guest.shell(f"cat {COLLECTOR}/journalkeeper.prom || true")
    metric = re.search(r"(?m)^journalkeeper_healthy (\S+)$", text)
    return Views(
        status.returncode,
        status.stdout.partition("\n\n")[0].replace("\n", " "),
        [one.partition(":")[0] for one in document["health_reasons"]],
        found,
        bus,
        None if bus is None or metric is None else metric[1],
    )


def health_on_the_bus(guest: Guest) -> str | None:
    """Return Health; None if the service does not have its name or does not answer. The call does not start it."""
    ask = ("org.freedesktop.DBus", "/", "org.freedesktop.DBus", "NameHasOwner", "s", names.BUS_NAME)
    owned = guest.run("busctl", "call", *ask)
    if "true" not in owned.stdout:
        return None
    get = ("get-property", names.BUS_NAME, names.MANAGER_PATH, names.MANAGER, "Health")
    said = guest.run("busctl", "--json=short", "--timeout=5", *get, check=False)
    return str(json.loads(said.stdout)["data"]) if said.returncode == 0 else None


def is_well(views: Views) -> bool:
    return views[0] == 0 and views.line.startswith("OK: ") and views[2:] == ([], [], "ok", "1")


Mend = Callable[[], object]
"""A function that ends a trouble."""


def stop(guest: Guest) -> Mend:
    guest.run("systemctl", "stop", UNIT)
    return lambda: guest.run("systemctl", "start", UNIT)


def configure_wrongly(guest: Guest) -> Mend:
    """Start the service with a configuration that it refuses."""
    write_config(guest, QUICK + "[Defrag]\nCompress=gzip\n")
    guest.run("systemctl", "restart", UNIT, check=False)

    def mend() -> None:
        write_config(guest, QUICK)
        guest.run("systemctl", "restart", UNIT)

    return mend


def make_immutable(guest: Guest) -> Mend:
    guest.run("chattr", "+i", "/var/log/journal")
    return lambda: guest.run("chattr", "-i", "/var/log/journal")


def hang(guest: Guest) -> Mend:
    guest.run("systemctl", "kill", "--signal=STOP", UNIT)
    began_s = time.monotonic()
    guest.run("journalkeeper", "status", check=False)
    assert time.monotonic() - began_s < STATUS_S
    return lambda: guest.run("systemctl", "kill", "--signal=CONT", UNIT)


def write_config(guest: Guest, text: str) -> None:
    (guest.root / "etc/journalkeeper.conf").write_text(text)


class Trouble(NamedTuple):
    """One row: its cause, the rule that finds it, the beginning of the line, and bus and metric."""

    cause: Callable[[Guest], Mend]
    rule: str
    line: str
    inside: tuple[str | None, str | None] = (None, None)


TROUBLES = (
    Trouble(stop, "keeper-down", "journalkeeper.service is enabled but does not run"),
    Trouble(configure_wrongly, "bad-configuration", "/etc/journalkeeper.conf:"),
    Trouble(hang, "keeper-hung", "journalkeeper.service runs and does not answer"),
    Trouble(make_immutable, "directory-unwritable", "The service cannot write to /var/log/journal: its", ("act", "0")),
)


@pytest.fixture(scope="module")
def guest(release: str) -> Iterator[Guest]:
    """Yield a datacow host on which journalkeeper is enabled and runs."""
    with datacow_guest(release) as host:
        host.run("mkdir", "-p", COLLECTOR)
        steps.install(host, QUICK)
        yield host


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.cause.__name__)
def test_every_view_of_the_verdict_agrees_during_a_trouble_and_after_it(guest: Guest, trouble: Trouble) -> None:
    """It takes long because each look starts eight commands, and a command waits for a service that hangs."""
    assert eventually(lambda: is_well(look(guest))), look(guest)
    mend = trouble.cause(guest)
    try:
        assert eventually(lambda: trouble.rule in look(guest).reasons), look(guest)
        views = look(guest)
        assert (views.exit_status, views.line.startswith(f"Act: {trouble.line}")) == (1, True), views
        assert views.doctor == views.reasons, views
        assert (views.bus, views.metric) == trouble.inside, views
    finally:
        mend()
    assert eventually(lambda: is_well(look(guest))), look(guest)


def test_the_units_of_the_man_page_report_a_verdict_that_is_not_ok(guest: Guest) -> None:
    """The files are those of journalkeeper.service(8). A login shows the verdict, and a check that fails logs it."""
    page = (steps.CHECKOUT / "configs/man/journalkeeper.service.8.in").read_text()
    files = re.findall(r"(?m)^\.EX\n# (/etc/(?:systemd|profile\.d)/\S+)\n((?:[^.].*\n)+)", page)
    assert len(files) == 5
    for path, text in files:
        guest.run("mkdir", "-p", path.rpartition("/")[0])
        (guest.root / path.lstrip("/")).write_text(text)
    guest.shell(f"systemctl daemon-reload; systemctl restart {UNIT}; systemctl enable --now journalkeeper-check.timer")
    assert eventually(lambda: is_well(look(guest))), look(guest)
    login = ("bash", "--login", "-c", "true")
    alerts = ("journalctl", "--quiet", "--output=cat", "--priority=err", "--identifier=journalkeeper-alert")
    guest.run("systemctl", "start", "journalkeeper-check.service")
    assert guest.run(*login, user="user").stdout == ""
    mend = stop(guest)
    try:
        assert guest.run("systemctl", "start", "journalkeeper-check.service", check=False).returncode == 1
        assert eventually(lambda: guest.run(*alerts).stdout.startswith("Act: journalkeeper.service is enabled"))
        assert guest.run(*login, user="user").stdout.startswith("Act: journalkeeper.service is enabled")
    finally:
        mend()
    done = ("journalctl", "--output=cat", "--unit", UNIT, "JOURNALKEEPER_RESULT=done")
    before = guest.run(*done).stdout
    steps.archive(guest)
    assert eventually(lambda: len(steps.history(guest)) > 0)
    assert guest.run(*done).stdout == before
