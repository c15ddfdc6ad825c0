# SPDX-License-Identifier: LGPL-2.1-or-later
"""The packages for Fedora and Arch, installed, started and removed by rpm(8) and pacman(8) on a booted Debian 13.

Only the names of the libraries differ there, so the dependencies are not checked here.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.adapters.command import need, ran
from tests.guest.conftest import datacow_guest
from tests.guest.steps import CHECKOUT, archive, eventually, extents, property_of

pytestmark = [pytest.mark.guest, pytest.mark.root, pytest.mark.slow, pytest.mark.long]

UNITS = ("journalkeeper.service", "journalkeeper-shutdown.service")


class Manager(NamedTuple):
    """A package manager: its Debian package, the program that builds, the built file, and its commands."""

    debian_package: str
    builder: str
    built: str
    install: str
    remove: str


MANAGERS = {
    "rpm": Manager("rpm", "rpmbuild", "*.noarch.rpm", "rpm --install --nodeps", "rpm --erase"),
    "arch": Manager(
        "pacman-package-manager", "makepkg", "*.pkg.tar*", "pacman --noconfirm -Udd", "pacman --noconfirm -R"
    ),
}


@pytest.mark.parametrize("kind", MANAGERS)
def test_the_package_is_installed_works_and_is_removed(kind: str, tmp_path: Path) -> None:
    """It takes long because a host is booted and installs the package manager."""
    manager = MANAGERS[kind]
    need(manager.builder)
    ran(CHECKOUT / "configs/packaging/build", kind, tmp_path, check=True)
    (package,) = tmp_path.glob(manager.built)
    with datacow_guest("trixie") as guest:
        made = archive(guest)
        fragmented = extents(guest)[made]
        guest.copy_in(package, f"/opt/{package.name}")
        guest.shell(f"apt-get -q update && apt-get install -qy --no-install-recommends {manager.debian_package}")
        (guest.root / "etc/journalkeeper.conf").write_text("[Watch]\nSettleSec=1s\n[Window]\nPressureMax=100%\n")
        guest.shell(f"{manager.install} /opt/{package.name}")
        guest.shell(f"systemctl daemon-reload && systemctl enable --now {' '.join(UNITS)}")
        assert eventually(lambda: extents(guest)[made] < fragmented / 2), guest.shell("journalkeeper plan")
        assert eventually(lambda: guest.run("journalkeeper", "status", check=False).returncode == 0)
        guest.shell(f"{manager.remove} journalkeeper")
        assert eventually(lambda: property_of(guest, "journalkeeper.service", "ActiveState") != "active")
        assert not (guest.root / "usr/share/journalkeeper").exists()
