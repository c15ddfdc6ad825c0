# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which files make up a configuration, and in which order, compared with systemd's own answer."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from journalkeeper.config.files import PROJECT_DIRS, parse_file, read_assignments
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
    return [row.value for row in read_assignments(name, root=str(root), subdir=subdir)]


@pytest.mark.parametrize(
    ("contents", "left"),
    [
        ({"etc/x.conf.d/\udcff.conf": "b", "run/x.conf.d/\u00e4.conf": "a"}, ["a", "b"]),
        *(
            ({"usr/lib/x.conf.d/a.conf": "no", "usr/lib/x.conf.d/b.conf": "b", "etc/x.conf.d/a.conf": mask}, ["b"])
            for mask in ("", "->/dev/null", "->nowhere")
        ),
        # a dangling link hides no main file
        ({"usr/lib/x.conf": "vendor", "etc/x.conf": "->/dev/null"}, []),
        ({"usr/lib/x.conf": "vendor", "etc/x.conf": "->nowhere"}, ["vendor"]),
        # other names are no drop-ins, a file in place of their directory has none, and a link to one is followed
        ({f"etc/x.conf.d/{name}": "no" for name in (".a.conf", "a.conf~", "a.conf.bak", "a", "conf")}, []),
        ({"etc/x.conf.d": "no", "run/x.conf.d/a.conf": "a"}, ["a"]),
        ({"there/a.conf": "a", "etc/x.conf.d": "->../there"}, ["a"]),
        # a namespace has nothing of the main one
        ({"etc/journald.conf": "no", "etc/journald.conf.d/a.conf": "no", "run/x.conf": "main"}, ["main"]),
    ],
)  # fmt: skip
def test_files_are_merged_as_systemd_does(tmp_path: Path, contents: dict[str, str], left: list[str]) -> None:
    for path, value in contents.items():
        put(tmp_path, path, value)
    assert values(tmp_path, "x.conf", "") == left


def test_an_explicit_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file") as caught:
        parse_file(str(tmp_path / "x.conf"))
    assert caught.value.number == errno.ENOENT


@pytest.mark.parametrize(
    "closed", ["etc/systemd/journald.conf", "etc/systemd/journald.conf.d/a.conf", "etc/systemd/journald.conf.d"]
)
def test_an_unreadable_configuration_is_an_error_with_its_path(open_directory: Path, closed: str) -> None:
    put(open_directory, "etc/systemd/journald.conf", "main")
    put(open_directory, "etc/systemd/journald.conf.d/a.conf", "a")
    assert values(open_directory) == ["main", "a"]
    os.chmod(open_directory / closed, 0)
    another = being_nobody() if os.geteuid() == 0 else nullcontext()
    with another, pytest.raises(FileError, match="Permission denied") as caught:
        values(open_directory)
    os.chmod(open_directory / closed, 0o755)  # noqa: S103, so that it can be removed
    assert (caught.value.path, caught.value.number) == (str(open_directory / closed), errno.EACCES)


def test_a_main_file_whose_link_cannot_be_followed_is_not_missing(tmp_path: Path) -> None:
    put(tmp_path, "etc/x.conf", "->x.conf")
    put(tmp_path, "usr/lib/x.conf", "vendor")
    with pytest.raises(FileError) as caught:
        values(tmp_path, "x.conf", "")
    assert (caught.value.path, caught.value.number) == (f"{tmp_path}/etc/x.conf", errno.ELOOP)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("seed", range(25))
def test_systemd_analyze_merges_the_same_way(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311, a fixed seed makes a failure repeatable
    paths = [f"{directory}/systemd/journald.conf" for directory in PROJECT_DIRS]
    names = ("10-a.conf", "9.conf", "a.conf", "B.conf", ".hidden.conf", "x.conf~", "y.txt")
    paths += [f"{path}.d/{name}" for path in list(paths) for name in names]
    for number, path in enumerate(dice.sample(paths, 15)):
        put(tmp_path, path, dice.choice(("", "->/dev/null", *(f"{number}",) * 5)))
    shown = ran("systemd-analyze", "cat-config", "--root", tmp_path, "systemd/journald.conf").stdout
    assert values(tmp_path) == re.findall(r"^Key=(.*)$", shown, re.MULTILINE)
