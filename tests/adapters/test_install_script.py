# SPDX-License-Identifier: LGPL-2.1-or-later
"""configs/install into a directory: what it writes is listed, and goes again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from journalkeeper import __version__

CHECKOUT = Path(__file__).parent.parent.parent
HOME = "usr/lib/journalkeeper"


def install(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([CHECKOUT / "configs/install", *words], capture_output=True, text=True, check=False)


def files(root: Path) -> set[str]:
    """Every file and link below `root`, the virtual environment apart."""
    found = (path for path in root.rglob("*") if path.is_symlink() or path.is_file())
    return {f"/{path.relative_to(root)}" for path in found if not path.is_relative_to(root / HOME)}


@pytest.mark.parametrize("words", [["--frob"], ["extra"]])
def test_words_it_does_not_know_are_a_usage_error(words: list[str]) -> None:
    done = install(*words)
    assert done.returncode == 2
    assert "see configs/install --help" in done.stderr


def test_a_root_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = install("--root", tmp_path / "missing")
    assert done.returncode == 1
    assert "missing: no such directory" in done.stderr


def test_purge_alone_is_refused() -> None:
    done = install("--purge")
    assert done.returncode == 1
    assert "--purge goes with --uninstall" in done.stderr


@pytest.mark.root
def test_uninstalling_what_was_never_installed_says_so(tmp_path: Path) -> None:
    done = install("--root", tmp_path, "--uninstall")
    assert done.returncode == 1
    assert "has installed nothing" in done.stderr


@pytest.mark.root
@pytest.mark.slow
def test_it_lists_what_it_writes_and_takes_just_that_away(tmp_path: Path) -> None:
    """Installed twice, as an upgrade is, beside a configuration and a record of the admin's own."""
    for _ in range(2):
        done = install("--root", tmp_path)
        assert done.returncode == 0, done.stderr
    manifest = (tmp_path / HOME / "manifest").read_text().splitlines()
    assert sorted(manifest) == sorted(files(tmp_path))
    assert {"/usr/bin/journalkeeper", "/usr/lib/journalkeeper.conf"} <= set(manifest)
    program = tmp_path / HOME / "venv/bin/python"
    version = subprocess.run(
        [program, "-P", "-m", "journalkeeper", "--version"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert version.stdout == f"journalkeeper {__version__}\n"
    own = tmp_path / "etc/journalkeeper.conf"
    own.parent.mkdir()
    own.write_text("[Defrag]\nCompress=no\n")
    assert install("--root", tmp_path, "--uninstall").returncode == 0
    assert files(tmp_path) == {"/etc/journalkeeper.conf"}
    assert not (tmp_path / HOME).exists()
