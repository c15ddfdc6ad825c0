# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs playbooks with this checkout's collection, on hosts that have no SSH.

Ansible sees nothing of this machine's own settings, and writes only below
the directory that it is given.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).parent.parent
COLLECTION = CHECKOUT / "configs/ansible"
ROLE = COLLECTION / "roles/journalkeeper"
PLUGINS = COLLECTION / "extensions/molecule/plugins"
SOURCE = (".github", "LICENSE", "README.md", "configs", "journalkeeper", "pyproject.toml", "units")
PYTHON_THERE = "/usr/bin/python3"
RECAP = re.compile(r"(?m)^(\S+)\s+: ok=(\d+)\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)")


class Recap(NamedTuple):
    """One host's line at the end of a play."""

    ok: int
    changed: int
    unreachable: int
    failed: int


class Played(NamedTuple):
    """What came of a playbook: Ansible's exit status, all that it said, and each host's line."""

    status: int
    said: str
    hosts: dict[str, Recap]

    @property
    def changed(self) -> dict[str, int]:
        """How many tasks changed something on each host."""
        return {name: recap.changed for name, recap in self.hosts.items()}


def missing() -> str | None:
    """Why no playbook can be run here; None if it can."""
    if importlib.util.find_spec("ansible") is None:
        return "ansible-core is not installed (pip install '.[ansible]')"
    return None


def program(name: str) -> str:
    """Where one of Ansible's programs is: beside this interpreter, as pip installs it."""
    return os.fspath(Path(sys.executable).with_name(name))


def link_collection(place: Path, collection: Path = COLLECTION) -> None:
    """Put the checkout's collection, or another one, where Ansible looks for one below `place`."""
    folder = place / "ansible_collections/journalkeeper"
    folder.mkdir(parents=True)
    (folder / "journalkeeper").symlink_to(collection)


def copy_source(place: Path) -> Path:
    """A copy of what is installed from this checkout, which somebody may be editing; returns `place`."""
    place.mkdir(parents=True)
    for name in SOURCE:
        if (CHECKOUT / name).is_dir():
            shutil.copytree(CHECKOUT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(CHECKOUT / name, place)
    return place


class Control:
    """A controller in the directory `home`; `hosts` are the words that run a command in each.

    It has the checkout's own collection with `link`; without, what is installed there.
    """

    def __init__(self, home: Path, hosts: Mapping[str, Sequence[str]], *, link: bool = True) -> None:
        self.home = home
        rows = {name: {"ansible_words": list(words)} for name, words in hosts.items()}
        both = {"ansible_connection": "words", "ansible_python_interpreter": PYTHON_THERE}
        self.inventory = home / "hosts"
        self.inventory.write_text(json.dumps({"all": {"hosts": rows, "vars": both}}))
        collections = home / "collections"  # and not below ANSIBLE_HOME, where linters install what they find
        if link:
            link_collection(collections)
        self.environment = {
            # PYTHON* would have the guest's Python write its caches where the tests have theirs
            **{name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "PYTHON"))},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "ANSIBLE_HOME": os.fspath(home / "ansible"),
            "ANSIBLE_COLLECTIONS_PATH": os.fspath(collections),
            "ANSIBLE_CONNECTION_PLUGINS": os.fspath(PLUGINS / "connection"),
            "ANSIBLE_PIPELINING": "true",
            "ANSIBLE_FORKS": "10",
            "ANSIBLE_NOCOLOR": "true",
            "XDG_CACHE_HOME": os.fspath(home / "cache"),
            "LC_ALL": "C.UTF-8",
        }

    def play(self, playbook: str, *words: str) -> Played:
        """Run a playbook in `home`, with further words for ansible-playbook."""
        return self.run(program("ansible-playbook"), f"--inventory={self.inventory}", playbook, *words)

    def run(self, *argv: str, timeout_s: float = 500) -> Played:
        """Run one of Ansible's programs in `home`."""
        done = subprocess.run(
            argv, env=self.environment, cwd=self.home, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=timeout_s,
        )  # fmt: skip
        recaps = {name: Recap(*map(int, numbers)) for name, *numbers in RECAP.findall(done.stdout)}
        return Played(done.returncode, done.stdout, recaps)
