# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tests, and what they share.

unit        what does no I/O, or fakes it: no root
adapters    one module against a file, a bus or a program of this machine
btrfs       real loop btrfs volumes, most with a journald of their own: root
guest       booted Debian hosts: root
trust       races, faults, limits and hostile input, at length by hand: python -m tests.trust
bench       what it costs, by hand: python -m tests.bench.NAME

hosts.py            hosts, files and volumes as the policy gets them, without a disk
journal_files.py    journal files on a disk: names, headers, entries, torn to pieces
forms.py            files that lie on the disk in every way that there is
daemon.py           the service and the commands as processes
bus.py              a system bus with polkit
nobody.py           a process with fewer rights
repeat.py           work that is repeated in a thread during a block
patience.py         wait until another process has done something
demo.py             what tests/try shows: an archive aged, read and compacted
load.py             messages by schedule at a bed
slowdisk.py         a disk image whose every read and write takes its time, and a btrfs on one

mutants.py          what the tests notice: tests/mutants
parallel.py         which worker runs which test, and in which order
conftest.py         volumes, beds with a journald, and the check that nothing is left behind
btrfs/conftest.py   the shared volume, files and engines on it
btrfs/journals.py   what a file bears, its plan, work on it, runs of an engine
btrfs/faults.py     full volumes, bad blocks, kills and power cuts
guest/steps.py      what is done to a host and asked of it
"""
