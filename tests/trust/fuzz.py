# SPDX-License-Identifier: LGPL-2.1-or-later
"""Coverage-guided fuzzing of every parser: python -m tests.trust.fuzz [--inputs N] [--seed N] [--checks A B]

atheris (libFuzzer) mutates inputs and keeps those that reach new branches of journalkeeper; each parser
(tests/trust/parsers.py) is fuzzed in a process of its own, from SEEDS on. The same seed and number make the same
inputs. What fails is printed with the command that replays it:

    python -m tests.trust.fuzz --replay header:TFBLU0hIUkg=
"""

from __future__ import annotations

import base64
import importlib.util
import re
import struct
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from journalkeeper.bus import names
from tests.bench.figures import Option
from tests.bus import raw_call
from tests.journal_files import header, journal
from tests.trust import table
from tests.trust.parsers import CHECKS
from tests.trust.table import Tally

LONGEST: Final = 4096
"""Bytes of an input: more than any of the parsers looks at in one value."""

SLOWEST_S: Final = 10
MEMORY_MIB: Final = 2048

SHARES: Final[Mapping[str, int]] = {"configuration": 1, "fiemap": 4, "value": 4}
"""How many of the inputs a parser gets, beside 8: what takes longer gets fewer."""

_HEADER = header(
    state=1, file_id=b"f" * 16, machine_id=b"m" * 16, seqnum_id=b"s" * 16, header_size=256, arena=8388352,
    data_table=5632, data_table_size=3634448, field_table=272, field_table_size=5328, tail_object=4_000_000,
    objects=900, entries=200, tail_seqnum=1200, head_seqnum=1001, entry_array=3640080, head_time=1 << 50,
    tail_time=1 << 50,
)  # fmt: skip
_CONFIGURATION = b"""[Watch]
SettleSec=10min
Directories=/var/log/journal
[Defrag]
Compress=zstd:3
MinExtents=100
[Budget]
BytesPerDay=2G
[Journal]
SystemMaxUse=1.5G
SyncIntervalSec=5min 20s
SystemMaxFiles=0x20
# a comment \\
 and more
"""
_ROWS = bytes([1, 0, 0, 0, 0, 1]) + struct.pack("<IIIH", 4096, 8192, 4096, 8)
_ENTRIES = [(number, (1 << 50) + number, b"%d" % (1 << 50)) for number in range(1, 7)]
_PLAN = raw_call(names.BUS_NAME, names.MANAGER_PATH, names.MANAGER, "Plan", "asst", [], "", 0)
_LONG_BODY = raw_call(names.BUS_NAME, names.MANAGER_PATH, names.MANAGER, "Plan", "s", "x" * 600)
_LONG_PATH = raw_call("a.b", "/" + "x" * 1100, "a.b", "C", "s", "hello")

SEEDS: Final[Mapping[str, Sequence[bytes]]] = {
    "header": [(8388608).to_bytes(8, "little") + _HEADER],
    "name": [
        b"system@" + b"0" * 32 + b"-" + b"0" * 16 + b"-" + b"1" * 16 + b".journal",
        b"user-1000@" + b"0" * 16 + b"-" + b"f" * 16 + b".journal~",
        b"remote-x.journal",
        b".journalkeeper-1.tmp",
    ],
    "entries": [b"\x20\0\0" + journal(_ENTRIES, compact=compact) for compact in (False, True)],
    "configuration": [(1 << 34).to_bytes(8, "little") + _CONFIGURATION],
    "value": [b"1.5G 3K", b"1h 30min 2.5s", b"2026-11-21 10:00:00.5 UTC", b"@1795255200", b"3 days ago", b"zstd:3"],
    "fiemap": [(1 << 20).to_bytes(6, "little") + bytes([kind]) + _ROWS for kind in range(6)],
    "options": [b"\0" + b"\1" + bytes([option]) + b"\1\1\1\3abc" * 2 for option in range(9)],
    "messages": [
        *(b"\7\0" + _PLAN, b"\xff\0" + _PLAN * 3, b"\1\0" + b"B" + _PLAN[1:]),
        *(b"\x40\0" + _LONG_BODY + _PLAN, b"\xff\1" + _LONG_PATH + _LONG_BODY),
    ],
    "row": [bytes([table_, 0]) + b"\6\1\2\3\4" * 6 + b"\4\0\4\1\4\2" + b"\2\1a" for table_ in range(8)],
    "note": [b"1700000000000000000 8388608 1700000000000000001"],
}


def find_obstacle() -> str | None:
    """Return the reason why nothing can be fuzzed here, or None."""
    if importlib.util.find_spec("atheris") is None:
        return "atheris is not installed: it has wheels for Python 3.11 to 3.13 on x86-64"
    return None


def fuzz(name: str, inputs: int, seed: int, tally: Tally) -> None:
    """Give a parser so many inputs. Print the command that repeats an input which failed."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as base:
        corpus, found = Path(base, "corpus"), Path(base, "found-")
        corpus.mkdir()
        for number, data in enumerate(SEEDS[name]):
            Path(corpus, f"{number}").write_bytes(data)
        words = [f"-runs={inputs}", f"-seed={seed}", f"-max_len={LONGEST}", f"-timeout={SLOWEST_S}"]
        words += [f"-rss_limit_mb={MEMORY_MIB}", f"-artifact_prefix={found}", "-print_final_stats=1", f"{corpus}"]
        child = [sys.executable, "-m", "tests.trust.fuzz_target", name, *words]
        done = subprocess.run(
            child, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False
        )
        failures = [path.read_bytes() for path in sorted(Path(base).glob("found-*"))]
    said = done.stdout  # a traceback comes on stdout, the rest on stderr
    counts = [int(one) for one in re.findall(r"stat::number_of_executed_units: +(\d+)", said)]
    covered = max((int(one) for one in re.findall(r"\bcov: (\d+)", said)), default=0)
    slowest_s = max((float(one) for one in re.findall(r"stat::slowest_unit_time_sec: +(\d+)", said)), default=0.0)
    table.say(f"{name}: {sum(counts):,} inputs, {covered} branches")
    unclean = [f"python -m tests.trust.fuzz --replay {name}:{base64.b64encode(data).decode()}" for data in failures]
    if failures or done.returncode != 0 or sum(counts) < inputs:
        unclean.append(f"exit status {done.returncode}\n{said[max(0, said.find('Traceback')) :][-3000:]}")
    tally.add(name, unclean=unclean, outage_s=slowest_s, points=sum(counts))


OPTIONS: Final = {
    "inputs": Option(1_000_000, "of all parsers together"),
    "checks": Option(list(CHECKS), "only these", str, many=True, choices=CHECKS),
    "replay": Option(None, "NAME:BASE64, one input that failed", str),
}


def attack(asked: Namespace, tally: Tally) -> None:
    """Fuzz every parser with its share of the inputs, or repeat one input, which raises what the check raises."""
    if asked.replay:
        name, _, data = asked.replay.partition(":")
        CHECKS[name](base64.b64decode(data))
        return
    whole = sum(SHARES.get(name, 8) for name in asked.checks)
    for name in asked.checks:
        fuzz(name, -(-asked.inputs * SHARES.get(name, 8) // whole), asked.seed, tally)


if __name__ == "__main__":
    sys.exit(table.command(__doc__, attack, OPTIONS, find_obstacle=find_obstacle))
