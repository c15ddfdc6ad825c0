# SPDX-License-Identifier: LGPL-2.1-or-later
"""A file written as a whole: readers find no part of it, it has the mode that was asked for, and nothing is left."""

from __future__ import annotations

import errno
import os
import subprocess
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from journalkeeper import whole_file
from journalkeeper.btrfs import kernel
from journalkeeper.cli import lab
from journalkeeper.journald import opening
from journalkeeper.model.errors import FileError, KeeperError
from journalkeeper.probe.base import scratch
from journalkeeper.whole_file import find_stranger, write_whole


def write(path: str, text: str, *, replace: bool = True) -> None:
    write_whole("write the metrics", path, text, mode=0o644, replace=replace)


def test_no_link_is_followed_and_another_user_can_read_it_whatever_the_umask(tmp_path: Path) -> None:
    victim, place = tmp_path / "victim", tmp_path / "place"
    victim.write_text("kept")
    place.mkdir()
    (place / "a.prom").symlink_to(victim)
    with pytest.raises(FileError):
        write(f"{place}/a.prom", "x 1\n", replace=False)
    before = os.umask(0o777)
    try:
        write(f"{place}/a.prom", "x 1\n")
    finally:
        os.umask(before)
    assert (place / "a.prom").stat().st_mode & 0o777 == 0o644
    assert victim.read_text() == "kept"
    assert not (place / "a.prom").is_symlink()
    assert os.listdir(place) == ["a.prom"]


@pytest.mark.parametrize(
    ("made", "number"),
    [("nothing", errno.ENOENT), ("a file", errno.ENOTDIR), ("a directory of the name", errno.EISDIR)],
)
def test_a_failed_write_is_an_error_with_its_path_and_leaves_nothing(tmp_path: Path, made: str, number: int) -> None:
    place = tmp_path / "place"
    if made == "a file":
        place.write_text("")
    elif made == "a directory of the name":
        (place / "a.prom").mkdir(parents=True)
    with pytest.raises(FileError, match=r"a\.prom: cannot write the metrics") as caught:
        write(f"{place}/a.prom", "x 1\n")
    assert caught.value.number == number
    assert not place.is_dir() or [name for name in os.listdir(place) if name != "a.prom"] == []


@pytest.mark.root
def test_on_a_full_disk_the_old_file_stays_and_the_new_one_goes(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "none", place], check=True)
    try:
        write(f"{place}/a.prom", "x 1\n")
        with pytest.raises(FileError) as caught:
            write(f"{place}/a.prom", "x 2\n" * 10_000)
        assert caught.value.number == errno.ENOSPC
        assert (place / "a.prom").read_text() == "x 1\n"
        assert os.listdir(place) == ["a.prom"]
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("sync", [True, False])
def test_the_content_is_durable_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, sync: bool) -> None:
    calls = Mock(fsync=Mock(side_effect=os.fsync), rename=Mock(side_effect=os.rename))
    monkeypatch.setattr(os, "fsync", calls.fsync)
    monkeypatch.setattr(os, "rename", calls.rename)
    write_whole("write the drop-in", f"{tmp_path}/a", "text", mode=0o644, sync=sync)
    assert [name for name, *_ in calls.mock_calls] == (["fsync", "rename"] if sync else ["rename"])


@pytest.mark.root
@pytest.mark.parametrize(("owner", "follows"), [(0, True), (12345, False)])
@pytest.mark.parametrize("target", ["there", "../place/there", "{top}/there", "there/./"])
def test_root_follows_only_links_of_roots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, target: str, *, follows: bool
) -> None:
    place = tmp_path / "place"
    (place / "there").mkdir(parents=True)
    (place / "link").symlink_to(target.format(top=place))
    os.chown(place / "link", owner, owner, follow_symlinks=False)
    if not follows:
        with pytest.raises(KeeperError, match='"link" is a link of user 12345'):
            write(f"{place}/link/a", "text")
        assert os.listdir(place / "there") == []
        monkeypatch.setattr(os, "geteuid", lambda: 12346)  # any other user follows it
    write(f"{place}/link/a", "text")
    assert (place / "there/a").read_text() == "text"


@pytest.mark.root
@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("nowhere")], ids=["file", "link"])
@pytest.mark.parametrize("exchanged", [False, True])
def test_a_users_link_is_not_followed_that_changes_places_with_what_is_roots_between_two_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None], *, exchanged: bool
) -> None:
    (tmp_path / "victim").mkdir()
    make(tmp_path / "roots")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    os.chown(tmp_path / "link", 12345, 12345, follow_symlinks=False)
    with opening.open_directory(str(tmp_path)) as dir_fd:

        def exchange_first(call: Callable[..., Any]) -> Callable[..., Any]:
            def look(name: str | Path, *arguments: Any, **options: Any) -> Any:
                if os.path.basename(name or "link") == "link":  # readlink(2) has a descriptor of it
                    kernel.exchange(dir_fd, "link", "roots")
                return call(name, *arguments, **options)

            return look

        if exchanged:
            kernel.exchange(dir_fd, "link", "roots")
        with monkeypatch.context() as patch, suppress(KeeperError, OSError):
            for call in ("open", "stat", "readlink"):
                patch.setattr(os, call, exchange_first(getattr(os, call)))
            assert whole_file._resolve(tmp_path / "link") != tmp_path / "victim"


def test_directories_are_opened_as_such_because_autofs_mounts_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Mock(side_effect=os.open)
    monkeypatch.setattr(os, "open", opened)
    assert whole_file._resolve(tmp_path) == tmp_path
    assert all(flags & os.O_DIRECTORY for (_, flags), _ in opened.call_args_list)


@pytest.mark.root
def test_a_circle_of_links_ends(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(FileError, match=os.strerror(errno.ELOOP)):
        write(f"{tmp_path}/a/x", "text")


@pytest.mark.root
def test_each_link_of_a_chain_must_be_roots(tmp_path: Path) -> None:
    for name, target in (("first", "second"), ("second", "third"), ("third", ".")):
        (tmp_path / name).symlink_to(target)
    assert not find_stranger(f"{tmp_path}/first/x")
    write(f"{tmp_path}/first/x", "text")
    os.lchown(tmp_path / "second", 12345, 12345)
    assert find_stranger(f"{tmp_path}/first/x") == f"{tmp_path}/second belongs to user 12345"


@pytest.mark.root
@pytest.mark.parametrize(
    ("mode", "owner", "says"),
    [(0o755, 0, ""), (0o1777, 0, ""), (0o775, 0, ""), (0o777, 0, "by everybody"), (0o700, 12345, "to user 12345")],
)
def test_root_measures_where_no_user_can_exchange_its_files(tmp_path: Path, mode: int, owner: int, says: str) -> None:
    """`probe fsync -D DIR` and `lab compare DIR` open names below DIR again and again."""
    place = tmp_path / "home/below"
    with pytest.raises(FileError, match=f"^{place}: cannot measure here: No such file"), scratch(str(place)):
        pass
    place.mkdir(parents=True)
    place.parent.chmod(mode)
    os.chown(place.parent, owner, owner)
    with ExitStack() as stack:
        if says:
            stack.enter_context(pytest.raises(KeeperError, match=says))
        stack.enter_context(scratch(str(place)))
    if says:
        args = Namespace(place=str(place), extents=3000, iops=0, directory=None, config=None)
        with pytest.raises(KeeperError, match=says):
            lab._require_fit_place(args)
