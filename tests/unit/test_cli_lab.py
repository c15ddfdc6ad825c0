# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper lab` without a volume: its arguments, its table, and its summary."""

from __future__ import annotations

import subprocess
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest

from journalkeeper.cli import lab, main
from journalkeeper.cli.output import Output
from journalkeeper.cli.table import Table
from journalkeeper.model.errors import KeeperError
from journalkeeper.model.schema import to_json
from journalkeeper.probe import compare
from journalkeeper.probe.compare import STRATEGIES, LabAnswer, Measured
from tests.answers import check

WORST = Measured("btrfsmaintenance", 123.456, 99.9, 1234.5, 123_456, 9, 10 << 30, 1 << 40, checksummed=True)


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        ("{place} -D /", 2, "leave out -D and --config"),
        ("{place} --config /dev/null", 2, "leave out -D and --config"),
        ("{place}/none", 1, "/none: is no directory"),
        ("{place}/file", 1, "/file: is no directory"),
        ("{place}", 1, "mkfs.btrfs is not installed: install the package btrfs-progs"),
    ],
)
def test_an_obstacle_is_named_with_the_remedy(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    words: str,
    status: int,
    says: str,
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}")
    assert main(["lab", "compare", *words.format(place=tmp_path).split()]) == status
    assert says in capsys.readouterr().err


def test_the_table_fits_80_columns() -> None:
    rows = [WORST._replace(strategy=one.name) for one in STRATEGIES]
    output = Output(Namespace(json="off", no_legend=False, no_pager=True, quiet=False))
    rows[2] = rows[2]._replace(written_bytes=45 << 29)
    assert max(map(len, output.format(Table(lab._COLUMNS, rows)))) <= 80
    said = lab._sum_up_lab(LabAnswer("/srv", 150, 250, 1 << 30, tuple(rows)))
    assert "logged: untouched 1.02e+03, NOCOW 1.02e+03, fewer flushes 22.5, small" in said
    assert "250 flushes of 40 messages each in 4 days, on /srv, 150 IOPS." in said


def test_the_answer_matches_its_schema() -> None:
    check("lab", to_json(LabAnswer("/srv", None, 250, 1, (WORST,))))


@pytest.mark.parametrize(
    ("asked", "can_limit", "limit"),
    [(None, True, 150), (None, False, 0), (500, True, 500), (500, False, None), (0, False, 0)],
)
def test_the_default_is_150_iops_where_possible(asked: int | None, limit: int | None, *, can_limit: bool) -> None:
    def throttle(iops: int) -> None:
        if iops and not can_limit:
            raise KeeperError("this kernel or cgroup cannot limit IOPS")

    with nullcontext() if limit is not None else pytest.raises(KeeperError, match="cannot limit"):
        assert compare.find_throttle(Mock(throttle=throttle), asked) == limit


def test_the_keeper_finds_its_configuration_in_a_directory_with_a_space(tmp_path: Path) -> None:
    package = tmp_path / "my disk" / "journalkeeper"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("import sys; print(sys.argv[-1])")
    words = ["env", f"STATE_DIRECTORY={package}", "sh", "-c", compare.KEEPER]
    said = subprocess.run(words, cwd=package.parent, capture_output=True, text=True, check=False)
    assert (said.stdout, said.stderr) == (f"{package}/conf\n", "")
