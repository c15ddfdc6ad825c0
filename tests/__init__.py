# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tests, and the modules that they share.

unit        code without I/O, or with fakes of it: no root
adapters    one module with a file, a bus or a program of this machine
btrfs       real loop btrfs volumes, most with their own journald: root
guest       booted Debian hosts: root
trust       races, faults and hostile input; the long forms by hand: python -m tests.trust
bench       measurements, by hand: python -m tests.bench.NAME

hosts.py            hosts, files and volumes as the policy gets them, without a disk
journal_files.py    journal files on a disk: names, headers, entries, fragments
daemon.py           the service and the commands as processes
bus.py              a system bus with polkit
nobody.py           a process with fewer rights
repeat.py           work that is repeated in a thread during a block
patience.py         wait until another process has done something
load.py             messages by schedule at a bed
slowdisk.py         a disk image whose every read and write takes its time, and a btrfs on one

mutants.py          protective checks undone, which a test must notice: tests/mutants
parallel.py         the order of the tests, and the worker of each
conftest.py         beds with a journald, and the check that a session leaves nothing behind
btrfs/conftest.py   the shared volume, files and engines on it
btrfs/journals.py   the attributes of a file, its plan, work on it, runs of an engine
btrfs/faults.py     full volumes, bad blocks, kills and power cuts
guest/steps.py      commands on a guest
"""

TESTS_OF = {
    "model": "model_* parsers",
    "config": "config*",
    "policy": "policy_* plan_effects history_loss limit nocow_rotate",
    "health": "health_* doctor",
    "btrfs": "btrfs_*",
    "journald": "journald_* hostile_names boundary",
    "observe": "observe* intake many_files",
    "history": "history_database history_state history_store record_faults",
    "execute": "execute* isolate kernels",
    "metrics": "metrics_*",
    "engine": "engine",
    "whole_file": "whole_file",
    "keeper": "",  # a Protocol, tested in both forms by cli_commands and cli_bus
    "report": "report_*",
    "probe": "probe_* lab_compare read_cost",
    "service": "service_* watch_limits purge host sid",
    "bus": "bus*",
    "cli": "cli_* completions man man_examples",
    "units": "units",
    "configs": "ansible* install* packages foreign_packages",
    "tests": "architecture style session suite bench_smoke",
}
"""The test files, without "test_" and ".py", of each package and directory."""
