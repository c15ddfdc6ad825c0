# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which directories hold journals, what is in them, and whose they are."""

from __future__ import annotations

import errno
import os
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from journalkeeper.config import files
from journalkeeper.journald import layout
from journalkeeper.journald.conf import Settings
from journalkeeper.journald.layout import Directory, find_directories, list_directory, read_effective_settings
from journalkeeper.journald.opening import hold
from journalkeeper.model import MIB
from journalkeeper.model.errors import FileError
from journalkeeper.report.retention import summarize_history
from journalkeeper.report.story import describe_limits
from journalkeeper.report.text import UNKNOWN
from tests import hosts
from tests.nobody import being_nobody

ID = "0123456789abcdef0123456789abcdef"
OTHER = "f" * 32


def touch(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"")


def test_every_instance_below_the_top_is_found_in_order(tmp_path: Path) -> None:
    for name in ("remote", f"{ID}.web", ID, OTHER, f"{ID}.a"):
        (tmp_path / name).mkdir()
    assert find_directories(str(tmp_path)) == [
        Directory(f"{tmp_path}/{ID}", ID, ID, ""),
        Directory(f"{tmp_path}/{ID}.a", f"{ID}.a", ID, "a"),
        Directory(f"{tmp_path}/{ID}.web", f"{ID}.web", ID, "web"),
        Directory(f"{tmp_path}/{OTHER}", OTHER, OTHER, ""),
        Directory(f"{tmp_path}/remote", "remote", "", ""),
    ]


NAMES = (f"{ID}.{'n' * 222}", f"{ID}.a@b:c_d-e", ID.upper(), "01234567-89ab-cdef-0123-456789abcdef")
OTHERS = (ID[:-1], ID + "0", f"{ID}.", f"{ID}..", f"{ID}...", f"{ID}.a b", f"{ID}.a*", f"{ID}.a\n", f"{ID}.\u00e4",
          f"{ID}.\udcff", f"g{ID[1:]}", f"{ID}-a", "Remote", "lost+found", ".snapshots")  # fmt: skip
JOURNALS = ("system.journal", "copy.journal", "system@1-2.journal~")


@pytest.mark.parametrize(
    ("made", "top", "found"),
    [
        *(([f"{name}/"], "", [name]) for name in NAMES),
        *(([f"{name}/"], "", []) for name in OTHERS),
        ([OTHER], "", []),  # a file
        *(([f"{name}/"], name, [name]) for name in (ID, f"{ID}.web", "remote")),  # the top itself, while it is empty
        *(([f"backup/{name}", f"backup/{ID}/"], "backup", ["backup", ID]) for name in JOURNALS),
        (["backup/notes.txt", "backup/x.journal/"], "backup", []),
    ],
)
def test_a_journald_may_write_to_these_names(tmp_path: Path, made: list[str], top: str, found: list[str]) -> None:
    for name in made:
        (tmp_path / name).mkdir(parents=True) if name.endswith("/") else touch(tmp_path / name)
    places = find_directories(str(tmp_path / top))
    assert [place.name for place in places] == found
    assert {place.machine_id for place in places} <= {ID, ""}


def test_a_linked_top_is_resolved_and_a_link_below_it_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real" / ID).mkdir(parents=True)
    (tmp_path / "real" / OTHER).symlink_to(tmp_path / "real" / ID)
    (tmp_path / "journal").symlink_to(tmp_path / "real")
    assert [directory.path for directory in find_directories(str(tmp_path / "journal"))] == [f"{tmp_path}/real/{ID}"]


def test_a_top_that_may_not_be_listed_is_an_error() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to make a directory that another user may not list")
    with tempfile.TemporaryDirectory() as top, being_nobody(), pytest.raises(FileError) as caught:
        find_directories(top)
    assert (caught.value.number, caught.value.path) == (errno.EACCES, os.path.realpath(top))


def test_a_listing_parts_journals_from_leftovers_and_the_rest(tmp_path: Path) -> None:
    for name in ("system.journal", "a\n.journal", "\udcff.journal~", ".journalkeeper-1.tmp", "fss", "x.tmp"):
        touch(tmp_path / name)
    with hold(os.open(tmp_path, os.O_RDONLY)) as fd:
        for found in (list_directory(str(tmp_path)), list_directory(fd)):
            assert sorted(found.journals) == ["a\n.journal", "system.journal", "\udcff.journal~"]
            assert found.leftovers == [".journalkeeper-1.tmp"]


@pytest.mark.parametrize("most", [2, 9])
def test_a_file_that_is_renamed_during_the_listing_counts_once(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    twice = ["remote-a.journal", "system.journal", "remote-a.journal", "user-1.journal", "system.journal"]
    monkeypatch.setattr(layout, "MOST_FILES", most)
    monkeypatch.setattr(layout, "_scan", lambda _: (SimpleNamespace(name=name) for name in twice))
    found = list_directory("/j")
    wanted = {2: {"system.journal", "user-1.journal"}, 9: set(twice)}
    assert set(found.journals) == wanted[most]
    assert len(found.journals) == len(wanted[most])


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with a machine id, a main configuration and one for the namespace "web"."""
    monkeypatch.setattr(layout, "MACHINE_ID", f"{tmp_path}/etc/machine-id")
    monkeypatch.setattr(files, "read_assignments", partial(files.read_assignments, root=f"{tmp_path}"))
    for path, text in {
        "etc/machine-id": f"{ID}\n",
        "etc/systemd/journald.conf": "[Journal]\nSystemMaxFiles=7\n",
        "etc/systemd/journald@web.conf": "[Journal]\nSyncIntervalSec=30s\nSystemMaxUse=1M\n",
    }.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (ID, {"storage": "auto", "sync_interval_us": 300_000_000, "system_max_files": 7}),
        (f"{ID}.web", {"storage": "persistent", "sync_interval_us": 30_000_000, "system_max_use_bytes": MIB}),
        (OTHER, {"storage": "persistent", "system_max_files": Settings().system_max_files}),
        ("remote", {"storage": "persistent", "sync_interval_us": 0}),
    ],
)
def test_an_instance_runs_by_its_own_configuration(root: Path, name: str, expected: dict[str, object]) -> None:
    (root / "var/log/journal" / name).mkdir(parents=True)
    (directory,) = find_directories(str(root / "var/log/journal"))
    found = read_effective_settings(directory, os.statvfs(root))
    assert {field: getattr(found, field) for field in expected} == expected


def test_journald_limits_no_journal_of_remote_hosts(root: Path) -> None:
    """systemd-journal-remote has limits of its own since 253."""
    (root / "var/log/journal/remote").mkdir(parents=True)
    (directory,) = find_directories(str(root / "var/log/journal"))
    found = read_effective_settings(directory, os.statvfs(root))
    kept = summarize_history(hosts.instance(name=directory.name, system_max_files=found.system_max_files), ())
    assert found.system_max_use_bytes is found.system_keep_free_bytes is found.system_max_file_size_bytes is None
    assert (kept.binding, kept.max_use_bytes, kept.max_files) == (None, None, 0)
    assert describe_limits(kept) == [("Limit", UNKNOWN)]


def test_a_host_without_a_machine_id_has_no_instance_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "machine-id"
    monkeypatch.setattr(layout, "MACHINE_ID", f"{path}")
    assert layout.read_machine_id() == ""
    path.write_bytes(b"\xffuninitialized\n")
    assert layout.read_machine_id() not in ("", ID)
