# SPDX-License-Identifier: LGPL-2.1-or-later
"""`pip install .` by itself, where a compiler and the headers are."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from journalkeeper import __version__

CHECKOUT = Path(__file__).parent.parent
LIBRARIES = ("btrfsutil", "dbus_fast", "jinja2", "psutil", "pydantic", "pyinotify", "systemd.journal")


def headers_missing() -> str | None:
    """Why nothing can be compiled here; None if it can."""
    for tool in ("gcc", "pkg-config"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    for library in ("libsystemd", "libbtrfsutil"):
        if subprocess.run(["pkg-config", "--exists", library], check=False).returncode != 0:
            return f"the headers of {library} are not installed"
    return None


@pytest.mark.slow
@pytest.mark.long
def test_pip_installs_it_into_a_plain_virtual_environment(tmp_path: Path) -> None:
    """Without the distribution's libraries, by README's own words for Debian 12 and 13."""
    if reason := headers_missing():
        pytest.skip(reason)
    plain = tmp_path / "plain"
    interpreter = Path(sys.base_prefix) / "bin/python3"
    subprocess.run([interpreter, "-m", "venv", plain], check=True)
    pip: list[str | Path] = [plain / "bin/pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, CHECKOUT, "btrfsutil<6.14"], check=True, timeout=500)
    imported: list[str | Path] = [plain / "bin/python", "-P", "-c", f"import {', '.join(LIBRARIES)}"]
    subprocess.run(imported, check=True, cwd=tmp_path)
    said = subprocess.run(
        [plain / "bin/journalkeeper", "--version"], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert said.stdout == f"journalkeeper {__version__}\n"


@pytest.mark.slow
@pytest.mark.long
def test_the_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    pack: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        tmp_path,
        CHECKOUT,
    ]
    subprocess.run(pack, check=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    listed = subprocess.run(
        [sys.executable, "-m", "zipfile", "--list", wheel], check=True, capture_output=True, text=True
    )
    names = {line.split("/")[0] for line in listed.stdout.splitlines()[1:]}
    assert names == {"journalkeeper", f"journalkeeper-{__version__}.dist-info"}
