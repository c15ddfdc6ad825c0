# SPDX-License-Identifier: LGPL-2.1-or-later
"""The textfile on a real directory: whole at any moment, readable by others, and nothing beside it."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from journalkeeper.metrics.textfile import NAME, target, write
from journalkeeper.model.errors import FileError


@pytest.mark.parametrize(
    ("place", "file"),
    [("/a/b.prom", "/a/b.prom"), ("/a/b", f"/a/b/{NAME}"), ("/a/prom", f"/a/prom/{NAME}"), ("/a.d", f"/a.d/{NAME}")],
)
def test_a_name_that_the_collector_reads_is_a_file_and_any_other_a_directory(place: str, file: str) -> None:
    assert target(place) == file


@pytest.fixture(params=[0o022, 0o077, 0o777])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_another_user_can_read_it_whatever_the_umask(tmp_path: Path) -> None:
    write(f"{tmp_path}/a.prom", "x 1\n")
    assert (tmp_path / "a.prom").stat().st_mode & 0o777 == 0o644


def test_a_reader_never_finds_a_part(tmp_path: Path) -> None:
    path, texts = tmp_path / "a.prom", [f"{letter * 60_000}\n" for letter in "ab"]
    write(str(path), texts[0])
    over = threading.Event()
    odd: list[int] = []

    def read() -> None:
        while not over.is_set():
            found = path.read_text()
            if found not in texts:
                odd.append(len(found))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(300):
        write(str(path), texts[number % 2])
    over.set()
    reader.join()
    assert odd == []
    assert os.listdir(tmp_path) == ["a.prom"]


def test_what_a_killed_run_left_is_no_obstacle_and_no_metric(tmp_path: Path) -> None:
    (tmp_path / ".a.prom.new").write_text("half")
    assert [name for name in os.listdir(tmp_path) if name.endswith(".prom")] == []
    write(f"{tmp_path}/a.prom", "x 1\n")
    assert os.listdir(tmp_path) == ["a.prom"]


def test_no_link_is_followed_that_somebody_laid_there(tmp_path: Path) -> None:
    victim, place = tmp_path / "victim", tmp_path / "place"
    victim.write_text("kept")
    place.mkdir()
    for name in ("a.prom", ".a.prom.new"):
        (place / name).symlink_to(victim)
    write(f"{place}/a.prom", "x 1\n")
    assert victim.read_text() == "kept"
    assert not (place / "a.prom").is_symlink()
    assert os.listdir(place) == ["a.prom"]


@pytest.mark.parametrize(
    ("made", "number"),
    [("nothing", errno.ENOENT), ("a file", errno.ENOTDIR), ("a directory of the name", errno.EISDIR)],
)
def test_what_cannot_be_written_is_said_with_its_path_and_leaves_nothing(
    tmp_path: Path, made: str, number: int
) -> None:
    place = tmp_path / "place"
    if made == "a file":
        place.write_text("")
    elif made == "a directory of the name":
        (place / "a.prom").mkdir(parents=True)
    with pytest.raises(FileError, match=r"a\.prom: cannot write the metrics") as caught:
        write(f"{place}/a.prom", "x 1\n")
    assert caught.value.number == number
    assert not (place / ".a.prom.new").exists()


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
