# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which files make up a configuration, and in which order, compared with systemd's own answer."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from journalkeeper.config.files import PROJECT_DIRS, assignments, files, parse_file
from journalkeeper.model.errors import FileError
from tests.adapters.command import ran
from tests.nobody import being_nobody


def put(root: Path, path: str, value: str) -> None:
    """A file below `root` that sets Key to `value`; a link to it if that begins with "->"."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    if value.startswith("->"):
        file.symlink_to(value[2:])
    else:
        file.write_text(f"[Journal]\nKey={value}\n" if value else "")


def values(root: Path, name: str = "journald.conf", subdir: str = "systemd") -> list[str]:
    return [row.value for row in assignments(name, root=str(root), subdir=subdir)]


@pytest.mark.parametrize("first", range(len(PROJECT_DIRS)))
def test_the_first_main_file_hides_the_others(tmp_path: Path, first: int) -> None:
    for directory in PROJECT_DIRS[first:]:
        put(tmp_path, f"{directory}/systemd/journald.conf", directory)
    assert values(tmp_path) == [PROJECT_DIRS[first]]


def test_dropins_follow_the_main_file_by_name_and_not_by_directory(tmp_path: Path) -> None:
    for path in ("usr/lib/systemd/journald.conf.d/10.conf", "etc/systemd/journald.conf.d/20.conf",
                 "run/systemd/journald.conf.d/15.conf", "usr/local/lib/systemd/journald.conf.d/9.conf",
                 "etc/systemd/journald.conf", "usr/lib/systemd/journald.conf.d/Z.conf"):  # fmt: skip
        put(tmp_path, path, path.removesuffix(".conf").rpartition("/")[2])
    assert values(tmp_path) == ["journald", "10", "15", "20", "9", "Z"]


@pytest.mark.parametrize("strong", range(len(PROJECT_DIRS) - 1))
def test_a_dropin_hides_those_of_the_same_name_in_weaker_directories(tmp_path: Path, strong: int) -> None:
    for directory in PROJECT_DIRS[strong:]:
        put(tmp_path, f"{directory}/systemd/journald.conf.d/a.conf", directory)
    assert values(tmp_path) == [PROJECT_DIRS[strong]]


@pytest.mark.parametrize("mask", ["", "->/dev/null", "->nowhere"])
def test_an_empty_file_or_link_to_nothing_masks_a_dropin(tmp_path: Path, mask: str) -> None:
    put(tmp_path, "usr/lib/systemd/journald.conf.d/a.conf", "masked")
    put(tmp_path, "usr/lib/systemd/journald.conf.d/b.conf", "b")
    put(tmp_path, "etc/systemd/journald.conf.d/a.conf", mask)
    assert values(tmp_path) == ["b"]


@pytest.mark.parametrize(("mask", "left"), [("", []), ("->/dev/null", []), ("->nowhere", ["vendor"])])
def test_an_empty_main_file_masks_the_vendors_and_a_dangling_link_does_not(
    tmp_path: Path, mask: str, left: list[str]
) -> None:
    put(tmp_path, "usr/lib/systemd/journald.conf", "vendor")
    put(tmp_path, "etc/systemd/journald.conf", mask)
    assert values(tmp_path) == left


@pytest.mark.parametrize("name", [".a.conf", "a.conf~", "a.conf.bak", "a", "conf"])
def test_other_names_are_no_dropins(tmp_path: Path, name: str) -> None:
    put(tmp_path, f"etc/systemd/journald.conf.d/{name}", "x")
    assert values(tmp_path) == []


def test_a_namespace_has_its_own_files_and_nothing_of_the_main_one(tmp_path: Path) -> None:
    put(tmp_path, "etc/systemd/journald.conf", "main")
    put(tmp_path, "etc/systemd/journald.conf.d/a.conf", "main")
    put(tmp_path, "run/systemd/journald@web.conf", "web")
    put(tmp_path, "usr/lib/systemd/journald@web.conf.d/a.conf", "a")
    assert values(tmp_path, "journald@web.conf") == ["web", "a"]
    assert values(tmp_path, "journald@db.conf") == []


def test_our_own_configuration_lies_at_the_top(tmp_path: Path) -> None:
    put(tmp_path, "etc/journalkeeper.conf", "main")
    put(tmp_path, "usr/lib/journalkeeper.conf", "hidden")
    put(tmp_path, "run/journalkeeper.conf.d/a.conf", "a")
    assert values(tmp_path, "journalkeeper.conf", "") == ["main", "a"]


def test_no_files_are_no_assignments(tmp_path: Path) -> None:
    assert assignments("journald.conf", root=str(tmp_path)) == []


def test_a_linked_dropin_directory_is_searched(tmp_path: Path) -> None:
    put(tmp_path, "elsewhere/a.conf", "a")
    (tmp_path / "etc/systemd").mkdir(parents=True)
    (tmp_path / "etc/systemd/journald.conf.d").symlink_to(tmp_path / "elsewhere")
    assert values(tmp_path) == ["a"]


def test_a_file_in_place_of_a_dropin_directory_is_passed_over(tmp_path: Path) -> None:
    put(tmp_path, "etc/systemd/journald.conf.d", "x")
    put(tmp_path, "run/systemd/journald.conf.d/a.conf", "a")
    assert values(tmp_path) == ["a"]


def test_undecodable_names_are_sorted_by_their_bytes(tmp_path: Path) -> None:
    put(tmp_path, "etc/systemd/journald.conf.d/\udcff.conf", "last")
    put(tmp_path, "etc/systemd/journald.conf.d/\u00e4.conf", "umlaut")
    put(tmp_path, "etc/systemd/journald.conf.d/z.conf", "z")
    assert values(tmp_path) == ["z", "umlaut", "last"]


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_is_a_fatal_problem_and_never_waited_for(tmp_path: Path, make: type) -> None:
    put(tmp_path, "etc/systemd/journald.conf.d/b.conf", "b")
    make(tmp_path / "etc/systemd/journald.conf.d/a.conf")
    rows = assignments("journald.conf", root=str(tmp_path))
    assert [(row.line, row.problem, row.fatal) for row in rows] == [
        (0, "this is not a regular file", True),
        (2, "", False),
    ]


def test_a_problem_names_its_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "x.conf"
    file.write_text("[Journal]\n\nnonsense\n")
    (row,) = parse_file(str(file))
    assert (row.file, row.line) == (str(file), 3)


def test_an_explicit_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file") as caught:
        parse_file(str(tmp_path / "x.conf"))
    assert caught.value.number == errno.ENOENT
    assert parse_file(str(tmp_path / "x.conf"), missing_ok=True) == []


def without_rights() -> AbstractContextManager[None]:
    """Root may read everything: be somebody else for a moment."""
    return being_nobody() if os.geteuid() == 0 else nullcontext()


@pytest.mark.parametrize(
    "closed", ["etc/systemd/journald.conf", "etc/systemd/journald.conf.d/a.conf", "etc/systemd/journald.conf.d"]
)
def test_what_may_not_be_read_is_an_error_that_names_it(open_directory: Path, closed: str) -> None:
    put(open_directory, "etc/systemd/journald.conf", "main")
    put(open_directory, "etc/systemd/journald.conf.d/a.conf", "a")
    assert values(open_directory) == ["main", "a"]
    os.chmod(open_directory / closed, 0)
    with without_rights(), pytest.raises(FileError, match="Permission denied") as caught:
        values(open_directory)
    os.chmod(open_directory / closed, 0o755)  # noqa: S103, so that it can be removed
    assert (caught.value.path, caught.value.number) == (str(open_directory / closed), errno.EACCES)


def test_a_directory_that_may_not_be_entered_hides_no_main_file_in_silence(open_directory: Path) -> None:
    put(open_directory, "etc/systemd/journald.conf", "main")
    put(open_directory, "usr/lib/systemd/journald.conf", "vendor")
    os.chmod(open_directory / "etc/systemd", 0)
    with without_rights(), pytest.raises(FileError) as caught:
        values(open_directory)
    os.chmod(open_directory / "etc/systemd", 0o755)  # noqa: S103, so that it can be removed
    assert caught.value.number == errno.EACCES


def cat_config(root: Path) -> list[str]:
    """The values in the order in which systemd-analyze shows them."""
    shown = ran("systemd-analyze", "cat-config", "--root", root, "systemd/journald.conf").stdout
    return re.findall(r"^Key=(.*)$", shown, re.MULTILINE)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("seed", range(25))
def test_systemd_analyze_merges_the_same_way(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311, a fixed seed makes a failure repeatable
    paths = [f"{directory}/systemd/journald.conf" for directory in PROJECT_DIRS]
    names = ("10-a.conf", "9.conf", "a.conf", "B.conf", ".hidden.conf", "x.conf~", "y.txt")
    paths += [f"{path}.d/{name}" for path in list(paths) for name in names]
    for number, path in enumerate(dice.sample(paths, 15)):
        put(tmp_path, path, dice.choice(("", "->/dev/null", *(f"{number}",) * 5)))
    assert values(tmp_path) == cat_config(tmp_path)


def test_files_are_listed_with_masks_among_them(tmp_path: Path) -> None:
    put(tmp_path, "etc/systemd/journald.conf", "main")
    put(tmp_path, "etc/systemd/journald.conf.d/a.conf", "->/dev/null")
    found = files("journald.conf", root=str(tmp_path))
    assert found == [f"{tmp_path}/etc/systemd/journald.conf", f"{tmp_path}/etc/systemd/journald.conf.d/a.conf"]
    assert parse_file(found[1]) == []
