# SPDX-License-Identifier: LGPL-2.1-or-later
"""The configuration checked in a process of its own: the same values, the same errors, and nothing stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from journalkeeper.cli import config_process
from journalkeeper.config import Config, files, validation
from journalkeeper.model.errors import ConfigError, KeeperError

PACKAGE = Path(config_process.__file__).parents[2]


def lines(tmp_path: Path, text: str) -> list[files.Assignment]:
    file = tmp_path / "some where's.conf"
    file.write_text(text, encoding="utf-8", errors="surrogateescape")
    return files.parse_file(str(file))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing but a comment\n",
        "[Watch]\nDirectories=/mnt/a /mnt/b\nDirectories=/mnt/ü\n[Budget]\nBytesPerDay=infinity\n",
        "[Nocow]\nRotateToApply=no\n[Defrag]\nChunkBytes=1M\nCompress=zstd:7\n",
        '[Metrics]\nTextfile=/run/it\'s "one".prom\n',
    ],
)
def test_values_are_the_same_as_in_one_process(tmp_path: Path, text: str) -> None:
    given = lines(tmp_path, text)
    found = config_process.from_assignments(given)
    assert found == validation.from_assignments(given)
    assert [type(part) for part in found] == [type(part) for part in Config()]


def test_errors_are_the_same_as_in_one_process(tmp_path: Path) -> None:
    given = lines(tmp_path, "[Watch]\nSettleSec=soon\n[Wach]\nx=1\n[Defrag]\nno line\nCompress=\udcff\n")
    with pytest.raises(ConfigError) as alone:
        validation.from_assignments(given)
    with pytest.raises(ConfigError) as there:
        config_process.from_assignments(given)
    assert there.value.problems == alone.value.problems
    assert len(there.value.problems) >= 3


def test_nothing_of_pydantic_stays(tmp_path: Path) -> None:
    file = tmp_path / "journalkeeper.conf"
    file.write_text("[Defrag]\nExtentsPerMiB=8\n")
    program = (
        "import sys; from journalkeeper.config import files; from journalkeeper.cli import config_process\n"
        "print(config_process.from_assignments(files.parse_file(sys.argv[1])).defrag.extents_per_mib)\n"
        "print([name for name in sys.modules if name.startswith('pydantic')])"
    )
    words = [sys.executable, "-c", program, str(file)]
    done = subprocess.run(words, cwd=PACKAGE, capture_output=True, text=True, check=True)
    assert done.stdout == "8\n[]\n"


def test_what_lies_in_the_current_directory_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ast.py").write_text("raise SystemExit('somebody else was here')")
    given = lines(tmp_path, "[Defrag]\nExtentsPerMiB=8\n")
    monkeypatch.chdir(tmp_path)
    assert config_process.from_assignments(given).defrag.extents_per_mib == 8


def test_a_process_that_fails_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_process, "PROGRAM", "raise MemoryError('no memory')")
    with pytest.raises(KeeperError, match="could not be checked: exit 1: MemoryError: no memory"):
        config_process.from_assignments(lines(tmp_path, "[Defrag]\nExtentsPerMiB=8\n"))
