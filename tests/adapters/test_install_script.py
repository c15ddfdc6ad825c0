# SPDX-License-Identifier: LGPL-2.1-or-later
"""configs/install lists the files that it writes to a directory, and removes them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from journalkeeper import __version__
from tests.adapters.command import ran

CHECKOUT = Path(__file__).parent.parent.parent
HOME = "usr/lib/journalkeeper"


def install(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return ran(CHECKOUT / "configs/install", *words)


def files(root: Path) -> set[str]:
    """Return every file and link below `root`, without the virtual environment."""
    found = (path for path in root.rglob("*") if path.is_symlink() or path.is_file())
    return {f"/{path.relative_to(root)}" for path in found if not path.is_relative_to(root / HOME)}


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["--frob"], 2, "see configs/install --help"),
        (["extra"], 2, "see configs/install --help"),
        (["--root", "{place}/missing"], 1, "missing: no such directory"),
        (["--purge"], 1, "--purge goes with --uninstall"),
        pytest.param(["--root", "{place}", "--uninstall"], 1, "has installed nothing", marks=pytest.mark.root),
    ],
)
def test_wrong_words_are_refused_with_a_reason(tmp_path: Path, words: list[str], status: int, says: str) -> None:
    done = install(*(word.format(place=tmp_path) for word in words))
    assert done.returncode == status
    assert says in done.stderr


def test_the_commands_that_prevent_all_work_make_a_valid_configuration(tmp_path: Path) -> None:
    """Neither /etc/journalkeeper.conf nor its directory of drop-ins exists after an installation."""
    said = (CHECKOUT / "configs/install").read_text().partition("<<'END'\n")[2].partition("END\n")[0]
    commands = [line for line in said.replace("/etc/", f"{tmp_path}/").splitlines() if line.startswith("  ")]
    assert commands.pop() == "  systemctl reload journalkeeper"
    ran("sh", "-ec", "\n".join(commands), check=True)
    (made,) = tmp_path.glob("journalkeeper.conf.d/*.conf")
    shown = ran(sys.executable, "-m", "journalkeeper", "--config", made, "check-config", "-j", check=True).stdout
    changed = [one["key"] for one in json.loads(shown)["values"] if not one["default"]]
    assert changed == ["Nocow", "Archived", "Active"]


def manifest(root: Path) -> list[str]:
    return (root / HOME / "manifest").read_text().splitlines()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a blank in its name, into which it was installed."""
    root = tmp_path_factory.mktemp("an image")
    done = install("--root", root)
    assert done.returncode == 0, done.stderr
    steps = [line.split(":")[0] for line in done.stderr.splitlines() if " of 3: " in line]
    assert steps == ["1 of 3", "2 of 3", "3 of 3"], "it takes minutes, and each step has a line"
    return root


@pytest.mark.root
@pytest.mark.slow
def test_the_installed_program_runs_from_its_directory(image: Path, tmp_path: Path) -> None:
    program = image / HOME / "venv/bin/python"
    version = ran(program, "-P", "-m", "journalkeeper", "--version", check=True, cwd=tmp_path)
    assert version.stdout == f"journalkeeper {__version__}\n"
    launcher = (CHECKOUT / "configs/bin/journalkeeper").read_text()
    ours = f"'/{HOME}/venv/bin/python' -I -m journalkeeper"
    ours = launcher.replace("/usr/bin/python3 -IB /usr/share/journalkeeper", ours)
    assert (image / HOME / "venv/bin/journalkeeper").read_text() == ours
    scripts = [path for path in (image / HOME / "venv/bin").iterdir() if path.is_file() and not path.is_symlink()]
    assert [path for path in scripts if os.fsencode(image) in path.read_bytes()] == []


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.long
def test_an_interrupted_upgrade_keeps_the_old_version_and_the_next_one_keeps_units_disabled(image: Path) -> None:
    """It is killed while pip works, and takes long because pip installs it twice."""
    before, listed = files(image), manifest(image)
    inside = image / HOME / "venv.new/bin/pip"
    words = [f"{CHECKOUT}/configs/install", "--root", f"{image}"]
    upgrade = subprocess.Popen(words, stderr=subprocess.DEVNULL, start_new_session=True)
    while not inside.exists():
        assert upgrade.poll() is None
        time.sleep(0.01)
    os.killpg(upgrade.pid, signal.SIGKILL)
    upgrade.wait()
    assert (files(image), manifest(image)) == (before, listed)
    program = image / HOME / "venv/bin/python"
    ran(program, "-P", "-m", "journalkeeper", "--version", check=True, cwd=image)
    stale = image / "usr/lib/systemd/system/stale.service"
    stale.touch()
    with (image / HOME / "manifest").open("a") as file:
        file.write("/usr/lib/systemd/system/stale.service\n")
    wanted = image / "etc/systemd/system/multi-user.target.wants/journalkeeper.timer"
    assert wanted.is_symlink()
    wanted.unlink()
    assert install("--root", image).returncode == 0
    assert {path.name for path in (image / HOME).iterdir()} - {"packages"} == {"enabled", "manifest", "venv"}
    assert not stale.exists()
    assert not wanted.is_symlink()


@pytest.mark.root
@pytest.mark.parametrize("words", [[], ["--uninstall"]])
def test_files_of_a_package_are_left_to_the_package(tmp_path: Path, words: list[str]) -> None:
    program = tmp_path / "usr/bin/journalkeeper"
    program.parent.mkdir(parents=True)
    program.write_text("#!/usr/bin/python3\n")
    done = install("--root", tmp_path, *words)
    assert done.returncode == 1
    assert "remove the package" in done.stderr
    assert files(tmp_path) == {"/usr/bin/journalkeeper"}


@pytest.mark.root
def test_an_image_with_another_python_is_refused(tmp_path: Path) -> None:
    """A script in place of chroot(8) prints the version; root's PATH is fixed."""
    chroot, real = tmp_path / "chroot", shutil.which("chroot")
    chroot.write_text("#!/bin/sh\necho 3.9\n")
    chroot.chmod(0o755)
    script = f"mount --bind {chroot} {real} && exec {CHECKOUT}/configs/install --root {tmp_path}"
    done = ran("unshare", "--mount", "--propagation", "private", "sh", "-c", script)
    assert done.returncode == 1
    assert "has Python 3.9" in done.stderr


def test_every_shipped_file_matches_a_pattern_of_the_table() -> None:
    rows = [line.split() for line in (CHECKOUT / "configs/files").read_text().splitlines() if line[:1] not in ("", "#")]
    assert [row for row in rows if len(row) != 2 or not row[1].startswith("/usr/")] == []
    assert ["configs/journalkeeper.conf", "/usr/lib"] in rows
    shipped = [*(CHECKOUT / "units").iterdir(), CHECKOUT / "configs/journalkeeper.conf"]
    patterns = [CHECKOUT / pattern for pattern, _ in rows]
    assert [path.name for path in shipped if not any(path.match(str(pattern)) for pattern in patterns)] == []
