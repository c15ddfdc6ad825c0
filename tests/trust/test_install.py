# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a local user can prepare for root's installation: paths, environment, pip's settings, an index."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
ROLE = CHECKOUT / "configs/ansible/roles/journalkeeper"
PINS = CHECKOUT / "configs/pins"
EVERYBODYS = re.compile(r"/(?:var/)?tmp/|/dev/shm/|/run/user/")


def pins(name: str) -> dict[str, tuple[str, list[str]]]:
    """The version and hashes of each requirement in a list."""
    text = "\n".join(line for line in (PINS / f"{name}.txt").read_text().splitlines() if not line.startswith("#"))
    found = {}
    for line in text.replace("\\\n", " ").splitlines():
        words = line.split()
        library, version = words[0].split("==")
        found[library] = version, [word.removeprefix("--hash=sha256:") for word in words[1:]]
    return found


# the Ansible role


def test_the_role_uses_no_name_that_a_user_can_take_first() -> None:
    """A directory for temporary files is everybody's: only what mktemp makes there is root's alone."""
    texts = {path: path.read_text() for path in ROLE.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    used = [
        f"{path.relative_to(ROLE)}: {line.strip()}"
        for path, text in texts.items()
        for line in text.splitlines()
        if EVERYBODYS.search(line) and "$(mktemp -d " not in line
    ]
    assert len(texts) > 10
    assert used == []


def test_the_directory_of_the_archive_is_roots_alone() -> None:
    tasks = (ROLE / "tasks/install.yml").read_text()
    made = tasks[tasks.index("Make a directory that only root can enter") : tasks.index("Send the source")]
    assert 'mode: "0700"' in made
    assert "owner: root" in made
    (place,) = re.findall(r"(?m)^__journalkeeper_incoming: (.*)$", (ROLE / "vars/main/role.yml").read_text())
    above = os.stat(os.path.dirname(place))
    assert (above.st_uid, above.st_mode & 0o022) == (0, 0)


@pytest.mark.root
def test_root_makes_nothing_below_a_users_tmpdir(tmp_path: Path) -> None:
    """A user who owns TMPDIR could exchange what root installs from there."""
    user, python = tmp_path / "user", tmp_path / "python"
    user.mkdir()
    os.chown(user, 12345, 12345)
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] || echo "$2" >{tmp_path}/made\n')
    python.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "TMPDIR": f"{user}", "PYTHON": f"{python}"}
    subprocess.run([CHECKOUT / "configs/place", tmp_path / "placed"], env=environment, check=True)
    made = Path((tmp_path / "made").read_text().strip())
    assert not made.is_relative_to(user)
    scripts = [path for path in CHECKOUT.glob("configs/**/*") if path.is_file()]
    assert [path for path in scripts if b"$(mktemp -d)" in path.read_bytes()] == []


# pip


def test_every_library_that_pip_may_fetch_is_pinned_with_what_it_needs() -> None:
    needed = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.split(r"[<>=;]", one)[0] for one in needed}
    nice = re.search(r'"apt-get nice"\) echo "(.*)"', (CHECKOUT / "configs/setup.sh").read_text())
    assert nice is not None
    fetched = {word.split(">=")[0].removeprefix("python3-") for word in nice[1].split()}
    assert fetched <= names
    assert {path.stem for path in PINS.glob("*.txt")} == fetched | {"build"}
    for path in PINS.glob("*.txt"):
        listed = pins(path.stem)
        assert path.stem == "build" or path.stem in listed
        assert [library for library, (_, hashes) in listed.items() if not hashes] == []
        assert all(re.fullmatch("[0-9a-f]{64}", one) for _, hashes in listed.values() for one in hashes)
    assert {"hatchling", "setuptools"} <= set(pins("build"))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy, with one library more that is pinned: pinnedthing, whose pinned content is "good"."""
    copy = tmp_path / "checkout"
    copy.mkdir()
    shutil.copytree(CHECKOUT / "configs", copy / "configs")
    good = wheel(tmp_path / "good", "good = True")
    digest = hashlib.sha256(good.read_bytes()).hexdigest()
    (copy / "configs/pins/pinnedthing.txt").write_text(f"pinnedthing==1.0 --hash=sha256:{digest}\n")
    return copy


def wheel(place: Path, code: str) -> Path:
    """A wheel of pinnedthing with that code."""
    place.mkdir(parents=True)
    path = place / "pinnedthing-1.0-py3-none-any.whl"
    info = "pinnedthing-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {
            "pinnedthing.py": code,
            f"{info}/METADATA": "Metadata-Version: 2.1\nName: pinnedthing\nVersion: 1.0\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/RECORD": "",
        }.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return path


def as_root(checkout: Path, script: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a script over the copy's configs/setup.sh, as `sudo -E` would with a user's environment."""
    return subprocess.run(
        ["sh", "-euc", f". configs/setup.sh; {script}"], cwd=checkout, env={"PATH": os.environ["PATH"], **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.root
@pytest.mark.slow
def test_an_index_that_sends_other_bytes_is_refused(checkout: Path, tmp_path: Path) -> None:
    evil, venv = wheel(tmp_path / "evil", "evil = True"), tmp_path / "venv"
    assert as_root(checkout, f"make_venv {venv}", {}).returncode == 0
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": f"{evil.parent}"}
    refused = as_root(checkout, f"pinned {venv} pinnedthing", index)
    assert refused.returncode != 0
    assert "DO NOT MATCH THE HASHES" in refused.stderr
    done = as_root(checkout, f"pinned {venv} pinnedthing", {**index, "PIP_FIND_LINKS": f"{tmp_path / 'good'}"})
    assert done.returncode == 0, done.stderr
    subprocess.run([venv / "bin/python", "-I", "-c", "import pinnedthing; assert pinnedthing.good"], check=True)


@pytest.mark.root
@pytest.mark.slow
def test_nothing_of_a_users_settings_is_used_by_roots_pip(checkout: Path, tmp_path: Path) -> None:
    """pip.conf can name a log to append to, a directory to write into, even an interpreter to run."""
    home, venv, stub = tmp_path / "home", tmp_path / "venv", tmp_path / "stub"
    log, target, marker = tmp_path / "log", tmp_path / "target", tmp_path / "marker"
    settings = home / ".config/pip/pip.conf"
    settings.parent.mkdir(parents=True)
    settings.write_text(f"[global]\nlog = {log}\n[install]\ntarget = {target}\n")
    (home / "evil").mkdir()
    (home / "evil/sitecustomize.py").write_text(f"open({str(marker)!r}, 'w')")
    stub.mkdir()
    root_home = tmp_path / "root"
    root_home.mkdir()
    (stub / "getent").write_text(
        f'#!/bin/sh\nif [ "$2" = 0 ]; then home={root_home}; else home={home}; fi\necho "u:x:1:1::$home:/bin/sh"\n'
    )
    (stub / "getent").chmod(0o755)
    users = {
        "SUDO_USER": "u",
        "HOME": f"{home}",
        "XDG_CONFIG_HOME": f"{home}/.config",
        "XDG_CONFIG_DIRS": f"{home}/.config",
        "PATH": f"{stub}:{os.environ['PATH']}",
        "PYTHONPATH": f"{home}/evil",
        "PIP_LOG": f"{log}",
        "PIP_TARGET": f"{target}",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": f"{tmp_path / 'good'}",
    }
    done = as_root(checkout, f"make_venv {venv} pinnedthing && pinned {venv} pinnedthing", users)
    assert [path.name for path in (log, target, marker) if path.exists()] == []
    assert done.returncode == 0, done.stderr
    subprocess.run([venv / "bin/python", "-I", "-c", "import pinnedthing"], check=True)


def test_what_the_hashes_do_not_cover_is_built_without_asking_an_index() -> None:
    """hatchling and setuptools are pinned too: no build fetches its own tools."""
    setup = (CHECKOUT / "configs/setup.sh").read_text()
    installs = re.findall(r"pip_in .* install .*", setup)
    assert len(installs) == 2
    assert all("--no-build-isolation" in one for one in installs)
    assert ["--require-hashes" in one or "--no-index" in one for one in installs] == [True, True]
    assert "make_venv" in (CHECKOUT / "configs/packaging/build").read_text()
    for script in ("configs/install", "configs/packaging/build", "tests/try"):
        assert not re.search(r"\bpip_in\b|-m pip\b", (CHECKOUT / script).read_text()), f"{script} uses pinned lists"
