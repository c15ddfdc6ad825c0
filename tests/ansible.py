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
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).parent.parent
COLLECTION = CHECKOUT / "configs/ansible"
ROLE = COLLECTION / "roles/journalkeeper"
SOURCE = (".github", "LICENSE", "README.md", "configs", "journalkeeper", "pyproject.toml", "units")
PYTHON_THERE = "/usr/bin/python3"
RECAP = re.compile(r"(?m)^(\S+)\s+: ok=\d+\s+changed=(\d+)\s+unreachable=\d+\s+failed=(\d+)")
SHIM = '#!/bin/sh\nfor command; do :; done\nexec {enter} /bin/sh -c "$command"\n'
"""What Ansible takes for ssh(1), whose last word is the command."""


class Played(NamedTuple):
    """Ansible's exit status and output, and for each host the number of tasks that changed something or failed."""

    status: int
    said: str
    changed: dict[str, int]
    failed: dict[str, int]

    def why(self) -> str:
        """Return the lines that say what failed."""
        return "\n".join(re.findall(r"(?m)^(?:fatal|failed|\[?ERROR).*$", self.said)) or self.said


def missing() -> str | None:
    """Return why no playbook can be run here; None if it can."""
    if importlib.util.find_spec("ansible") is None:
        return "ansible-core is not installed (pip install '.[ansible]')"
    return None


def program(name: str) -> str:
    """Return the path of one of Ansible's programs, which pip installs next to this interpreter."""
    return os.fspath(Path(sys.executable).with_name(name))


def copy_source(place: Path) -> Path:
    """Copy the files that are installed from this checkout to the new directory `place`, and return it."""
    place.mkdir(parents=True)
    for name in SOURCE:
        if (CHECKOUT / name).is_dir():
            shutil.copytree(CHECKOUT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(CHECKOUT / name, place)
    return place


class Control:
    """A controller in the directory `home`; `hosts` are the words that run a command in each.

    With `link` it uses the checkout's own collection, and without only the collections that it installs itself.
    """

    def __init__(self, home: Path, hosts: Mapping[str, Sequence[str]], *, link: bool = True) -> None:
        self.home = home
        rows = {}
        for name, enter in hosts.items():
            shim = home / f"enter-{name}"
            shim.write_text(SHIM.format(enter=shlex.join(enter)))
            shim.chmod(0o755)
            rows[name] = {"ansible_ssh_executable": os.fspath(shim)}
        every_host = {"ansible_ssh_transfer_method": "piped", "ansible_python_interpreter": PYTHON_THERE}
        self.inventory = home / "hosts"
        self.inventory.write_text(json.dumps({"all": {"hosts": rows, "vars": every_host}}))
        collections = home / "collections"  # and not below ANSIBLE_HOME, where linters install what they find
        if link:
            (collections / "ansible_collections/journalkeeper").mkdir(parents=True)
            (collections / "ansible_collections/journalkeeper/journalkeeper").symlink_to(COLLECTION)
        self.environment = {
            # PYTHON* would have the guest's Python write its caches where the tests have theirs
            **{name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "PYTHON"))},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "ANSIBLE_HOME": os.fspath(home / "ansible"),
            "ANSIBLE_COLLECTIONS_PATH": os.fspath(collections),
            "ANSIBLE_PIPELINING": "true",
            "ANSIBLE_FORKS": "10",
            "ANSIBLE_SSH_RETRIES": "2",  # a busy machine's nsenter can fail
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
        recaps = RECAP.findall(done.stdout)
        changed, failed = ({row[0]: int(row[column]) for row in recaps} for column in (1, 2))
        return Played(done.returncode, done.stdout, changed, failed)
