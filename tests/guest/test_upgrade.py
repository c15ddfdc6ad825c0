# SPDX-License-Identifier: LGPL-2.1-or-later
"""A host of version 0.1.0 under load is upgraded to this version, by configs/install and by the package.

The tests are skipped in a clone without that version in its history.
A test takes long because it installs both versions.
"""

from __future__ import annotations

import re
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from journalkeeper import __version__
from tests import ansible
from tests.adapters.command import ran
from tests.guest.conftest import EVERYDAY, datacow_guest
from tests.guest.host import Guest
from tests.guest.steps import (
    CHECKOUT,
    SOURCE,
    archive,
    eventually,
    extents,
    history,
    lend_checkout,
    property_of,
    verify,
)

pytestmark = [pytest.mark.guest, pytest.mark.root, pytest.mark.slow, pytest.mark.long, pytest.mark.may_skip]

OLD, OLD_VERSION = "0e13622", "0.1.0"
"""The commit that was 0.1.0."""

SERVICE = "journalkeeper.service"
QUICK = {"SettleSec": "1s", "NocowSettleSec": "5s", "PressureMax": "100%", "Nocow": "no"}
LOAD = "i=0; while :; do i=$((i+1)); echo load $i; sleep 0.02; done"
APT = "DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends --allow-downgrades install"
AGED = 100
"""A file of this many extents was not mended."""


class Release(NamedTuple):
    """One version: its source on this machine, and its place in the guest."""

    source: Path
    there: str


Install = Callable[[Guest, Release], None]


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Release, Release]:
    """Return 0.1.0 from this repository's history, and this checkout."""
    place = tmp_path_factory.mktemp("releases")
    packed = place / "old.tar"
    if ran("git", "-C", CHECKOUT, "archive", f"--output={packed}", OLD).returncode != 0:
        pytest.skip(f"this clone has no commit {OLD}, which was {OLD_VERSION}")
    with tarfile.open(packed) as tar:
        tar.extractall(place / "old")  # noqa: S202 - made here; the filter is of Python 3.11.4
    return Release(place / "old", "/opt/old"), Release(ansible.copy_source(place / "new"), SOURCE)


def by_script(guest: Guest, release: Release) -> None:
    """Run configs/install of the release."""
    guest.run(f"{release.there}/configs/install")


def by_package(guest: Guest, release: Release) -> None:
    """Build the package of the release on this machine, which is a Debian 12 too, and install it by apt."""
    packages = release.source.parent / f"{release.source.name}-deb"
    if not packages.exists():
        ran(release.source / "configs/packaging/build", "deb12", packages, check=True)
    (deb,) = packages.glob("*.deb")
    shutil.copy(deb, guest.root / f"{release.there}.deb".lstrip("/"))
    guest.shell(f"{APT} {release.there}.deb")


def every_directive(release: Release) -> str:
    """Return a configuration that sets every directive that the release knows."""
    text = (release.source / "configs/journalkeeper.conf").read_text()
    for name, value in QUICK.items():
        text = re.sub(rf"(?m)^#{name}=.*$", f"{name}={value}", text)
    return re.sub(r"(?m)^#([A-Z]\w+=.+)$", r"\1", text)


@pytest.fixture(params=[by_script, by_package])
def way(request: pytest.FixtureRequest) -> Install:
    """Return each function that installs it."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def host(way: Install, releases: tuple[Release, Release]) -> Iterator[Guest]:
    """Yield a host on which 0.1.0 has done some work, with all of its directives set and a load that never stops."""
    old, _ = releases
    with datacow_guest(EVERYDAY) as guest:
        made = archive(guest)
        shutil.copytree(old.source, guest.root / old.there.lstrip("/"))
        lend_checkout(guest)
        (guest.root / "etc/journalkeeper.conf").write_text(every_directive(old))
        way(guest, old)
        assert eventually(lambda: extents(guest)[made] < AGED)
        assert eventually(lambda: history(guest)), "the outcome is recorded after the file is exchanged"
        guest.run("systemd-run", "--quiet", "--unit=load", "bash", "-c", LOAD)
        yield guest


def version(guest: Guest) -> str:
    """Return the version of the running service."""
    names = ("org.journalkeeper1", "/org/journalkeeper1", "org.journalkeeper1.Manager")
    return guest.run("busctl", "get-property", *names, "Version").stdout.split('"')[1]


def away_s(guest: Guest) -> float:
    """Return how long the service was away at its last restart."""
    gone, back = (int(property_of(guest, SERVICE, f"Inactive{edge}TimestampMonotonic")) for edge in ("Enter", "Exit"))
    return (back - gone) / 1e6


def test_an_upgrade_keeps_history_and_configuration_and_loses_no_message(
    host: Guest, way: Install, releases: tuple[Release, Release]
) -> None:
    before, pid = history(host), property_of(host, SERVICE, "MainPID")
    assert (version(host), bool(before)) == (OLD_VERSION, True)
    way(host, releases[1])
    assert version(host) == __version__
    assert property_of(host, SERVICE, "MainPID") != pid
    assert 0 <= away_s(host) < 10, "it ends once, when everything is in place"
    after = {(one["when_us"], one["path"], one["extents_after"]) for one in history(host)}
    assert {(one["when_us"], one["path"], one["extents_after"]) for one in before} <= after
    host.run("journalkeeper", "check-config")
    made = archive(host)
    assert eventually(lambda: extents(host)[made] < AGED)
    assert host.run("systemctl", "--failed", "--no-legend", "--plain").stdout == ""
    assert eventually(lambda: host.run("journalkeeper", "status", check=False).stdout.startswith("OK"))
    host.run("systemctl", "stop", "load")
    said = host.run("journalctl", "--output=cat", "--unit=load").stdout
    numbers = [int(number) for number in re.findall(r"(?m)^load (\d+)$", said)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > 100
    verify(host)
