# SPDX-License-Identifier: LGPL-2.1-or-later
"""What stays of journalkeeper when its program goes, by the script that --uninstall, packages and the role share."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from journalkeeper.metrics.publisher import name_metrics_file
from journalkeeper.probe.scratch_volume import run

pytestmark = pytest.mark.root

SCRIPT = Path(__file__).parent.parent.parent / "configs/ansible/roles/journalkeeper/files/purge.sh"


def purge(*words: str | Path) -> list[str]:
    done = subprocess.run(["sh", SCRIPT, *words], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


def put(root: Path, path: str, text: str = "") -> Path:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with a configuration, one that overrides it, and metrics by both."""
    root = tmp_path / "a root"
    put(root, "/etc/journalkeeper.conf", "[Metrics]\nTextfile=/metrics/first\n")
    put(
        root,
        "/etc/journalkeeper.conf.d/10-own.conf",
        "[Metrics]\n# Textfile=/metrics/no\n Textfile = /metrics/own.prom \n",
    )
    put(root, "/usr/lib/journalkeeper.conf.d/90-none.conf", "[Metrics]\nTextfile=\n")
    put(root, "/etc/systemd/system/journalkeeper-.service.d/50-ansible.conf")
    put(root, "/var/lib/journalkeeper/history.db")
    for named in ("/metrics/first", "/metrics/own.prom"):
        put(root, name_metrics_file(named))
    for other in ("/metrics/first/node.prom", "/metrics/no/journalkeeper.prom", "/journalkeeper.prom"):
        put(root, other)
    return root


OWN = (
    "/metrics/first/journalkeeper.prom",
    "/metrics/own.prom",
    "/var/lib/journalkeeper",
    "/etc/journalkeeper.conf",
    "/etc/journalkeeper.conf.d",
    "/etc/systemd/system/journalkeeper-.service.d",
)


def files(root: Path) -> set[str]:
    return {f"/{path.relative_to(root)}" for path in root.rglob("*") if not path.is_dir()}


def test_the_metrics_go_wherever_a_configuration_names_them_and_nothing_of_others(root: Path) -> None:
    before = files(root)
    assert purge("--list", root) == [f"kept: {root}{path}" for path in OWN]
    assert files(root) == before
    assert purge(root) == [f"removed: {root}{path}" for path in OWN]
    left = {"/metrics/first/node.prom", "/metrics/no/journalkeeper.prom", "/journalkeeper.prom"}
    assert files(root) == {*left, "/usr/lib/journalkeeper.conf.d/90-none.conf"}
    assert purge(root) == []


def test_directories_that_stay_nocow_are_named_with_what_ends_it(place: Path) -> None:
    put(place, "/etc/journalkeeper.conf", '[Watch]\nDirectories="/srv/a journal" /srv/plain\n')
    for name in ("var/log/journal/abc", "var/log/journal/plain", "srv/a journal", "srv/plain"):
        (place / name).mkdir(parents=True)
    for name in ("var/log/journal/abc", "srv/a journal"):
        run("chattr", "+C", place / name)
    said = [line for line in purge("--list", place) if "+C" in line]
    assert said == [
        f"kept: +C of {where}: files made there have no checksums; chattr -C {where} takes it off new files"
        for where in (f"{place}/srv/a journal", f"{place}/var/log/journal/abc")
    ]
    put(place, "/usr/lib/tmpfiles.d/journal-nocow.conf")
    systemds = [line for line in purge(place) if "systemd's own" in line]
    assert len(systemds) == 1
    put(place, "/etc/tmpfiles.d/journal-nocow.conf")
    run("chattr", "-C", place / "var/log/journal/abc", place / "srv/a journal")
    assert purge(place) == []
