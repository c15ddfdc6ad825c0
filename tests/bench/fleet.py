# SPDX-License-Identifier: LGPL-2.1-or-later
# ruff: noqa: T201 - a bench prints
"""How long the Ansible role takes for a fleet: fresh booted guests, half of them Debian 12 and half Debian 13.

    sudo python -m tests.bench.fleet --hosts 10

Three runs of one playbook (the collection page's), each over all hosts at once: everything
is installed, nothing changes, one value changes. The whole takes as long as one sees; a
host's seconds are its tasks', from start to result, and all hosts share this machine.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from journalkeeper.probe.scratch_volume import ScratchVolume
from tests import ansible
from tests.ansible import Control, Played
from tests.bench.figures import Figure, count_is, need_a_bed, parser, show
from tests.guest import base
from tests.guest.host import Guest, missing

SITE = """\
- hosts: all
  gather_facts: false
  roles:
    - role: journalkeeper.journalkeeper.journalkeeper
      vars:
        journalkeeper_source: "{{ playbook_dir }}/journalkeeper"
"""
RUNS = {
    "everything is installed": {},
    "nothing changes": {},
    "one value changes": {"journalkeeper_budget_bytes_per_day": "2G"},
}


class Run(NamedTuple):
    """One run of the playbook: what came of it, how long it took, and each host's share."""

    played: Played
    whole_s: float
    host_s: dict[str, float]


def play(control: Control, variables: dict[str, str], forks: int) -> Run:
    """Run the playbook.

    Raises: RuntimeError with what Ansible said if it fails on any host.
    """
    seconds = control.home / "seconds.json"
    control.environment |= {
        "ANSIBLE_CALLBACK_PLUGINS": os.fspath(ansible.PLUGINS / "callback"),
        "ANSIBLE_CALLBACKS_ENABLED": "host_seconds",
        "HOST_SECONDS": os.fspath(seconds),
    }
    began = time.monotonic()
    played = control.play("site.yml", f"--forks={forks}", "--extra-vars", json.dumps(variables))
    whole_s = time.monotonic() - began
    if played.status != 0:
        raise RuntimeError(played.said)
    host_s = {name: value for name, value in json.loads(seconds.read_text()).items() if name in played.hosts}
    return Run(played, whole_s, host_s)


def measure(hosts: int, forks: int) -> dict[str, Run]:
    """Boot the hosts and run the playbook three times."""
    releases = sorted(base.SYSTEMD)
    with ExitStack() as stack:
        volume = stack.enter_context(ScratchVolume(f"{hosts + 2}G"))
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="journalkeeper-fleet-")))
        fleet = []
        for number in range(hosts):
            release = releases[number % len(releases)]
            fleet.append(stack.enter_context(Guest(release, volume=volume, name=f"{release}-{number + 1:02}")))
            fleet[-1].boot()
            print(f"{fleet[-1].name} is up", file=sys.stderr)
        control = Control(home, {host.name: host.command() for host in fleet})
        ansible.copy_source(home / "journalkeeper")
        (home / "site.yml").write_text(SITE)
        return {name: play(control, variables, forks) for name, variables in RUNS.items()}


def figures(runs: dict[str, Run]) -> list[Figure]:
    """The table's rows."""
    rows = []
    for name, run in runs.items():
        rows.append(Figure(f"{name}: whole", f"{run.whole_s:.1f} s"))
        rows.append(Figure(f"{name}: a host, median", f"{statistics.median(run.host_s.values()):.1f} s"))
        rows.append(Figure(f"{name}: whole / hosts", f"{run.whole_s / len(run.host_s):.1f} s"))
    failed = sum(recap.failed + recap.unreachable for run in runs.values() for recap in run.played.hosts.values())
    rows.append(count_is("hosts that failed", failed, 0))
    rows.append(count_is("changes in the second run", sum(runs["nothing changes"].played.changed.values()), 0))
    return rows


def main() -> int:
    """Measure and print."""
    words = parser(__doc__)
    words.add_argument("--hosts", type=int, default=10, help="how many (default: %(default)s)")
    words.add_argument("--forks", type=int, default=10, help="Ansible's --forks (default: %(default)s)")
    given = words.parse_args()
    if reason := missing() or ansible.missing():
        words.exit(1, f"{words.prog}: {reason}\n")
    need_a_bed(words)
    runs = measure(given.hosts, given.forks)
    columns = list(runs)
    print(f"{'seconds on':14}  " + "  ".join(f"{name:>24}" for name in columns))
    for host in sorted(runs[columns[0]].host_s):
        print(f"{host:14}  " + "  ".join(f"{run.host_s[host]:>24.1f}" for run in runs.values()))
    show(f"{given.hosts} hosts by one playbook", [f"{given.forks} forks"], figures(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
