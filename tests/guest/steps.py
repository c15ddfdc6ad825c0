# SPDX-License-Identifier: LGPL-2.1-or-later
"""What tests do to a host, and what they read from it, by commands in its shell."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from journalkeeper.model.units import DAY_US
from tests import ansible, patience
from tests.guest.host import Guest

CHECKOUT = Path(__file__).parent.parent.parent
SOURCE = "/opt/source"
INSTALL = f"{SOURCE}/configs/install"
HEAD_REALTIME = 184
"""Where a journal file's header has its head_entry_realtime."""

eventually = partial(patience.eventually, pause_s=0.2)
"""As `patience.eventually`: each look at a guest starts a process there."""


def lend_checkout(guest: Guest) -> None:
    """Copy the files that are installed from this checkout to SOURCE in the guest."""
    ansible.copy_source(guest.root / SOURCE.lstrip("/"))


def install(guest: Guest, config: str, *words: str) -> str:
    """Install journalkeeper with this configuration, and return what configs/install printed."""
    lend_checkout(guest)
    (guest.root / "etc/journalkeeper.conf").write_text(config)
    return guest.run(INSTALL, *words).stdout


def property_of(guest: Guest, unit: str, name: str) -> str:
    """Return a unit's property as `systemctl show` prints it."""
    return guest.run("systemctl", "show", f"--property={name}", "--value", unit).stdout.strip()


def extents(guest: Guest, namespace: str = "") -> dict[str, int]:
    """Return the number of extents of each file of the main journal, or of a namespace's."""
    instance = f"{guest.machine_id}.{namespace}" if namespace else guest.machine_id
    said = guest.shell(f"cd /var/log/journal/{instance} && filefrag *")
    return {name: int(count) for name, count in re.findall(r"(?m)^(\S+): (\d+) extents? found$", said)}


def plan(guest: Guest) -> dict[str, Any]:
    """Return the document of `journalkeeper plan`, which fails while a service on a busy machine answers too late."""
    document: dict[str, Any] = json.loads(guest.shell("until journalkeeper plan -j; do sleep 1; done"))
    return document


def history(guest: Guest, *words: str) -> list[dict[str, Any]]:
    """Return the outcomes "done" of `journalkeeper history`, the oldest first."""
    outcomes = json.loads(guest.run("journalkeeper", "history", "-j", *words).stdout)["outcomes"]
    return [one for one in outcomes if one["result"] == "done"]


def archive(guest: Guest) -> str:
    """Age the active file, rotate it, wait until journald has closed the archive, and return its name."""
    before = extents(guest)
    guest.age(40)
    guest.run("journalctl", "--rotate")
    (made,) = {name for name in extents(guest).keys() - before.keys() if name.startswith("system@")}
    # journald closes it in a thread, after it has answered
    assert eventually(
        lambda: "State: ARCHIVED" in guest.shell(f"journalctl --header --file='/var/log/journal/*/{made}'")
    )
    return made


def verify(guest: Guest, *words: str) -> None:
    """Rotate with `words` for journalctl, and check all archives.

    A check of an active file fails if journald appends to it meanwhile: "Invalid data object at hash entry".
    """
    guest.run("journalctl", *words, "--rotate")
    guest.shell("journalctl --verify --file='/var/log/journal/*/*@*.journal' 2>&1 | { grep -v ^PASS >&2 || true; }")


def _head_us(path: Path) -> int:
    with path.open("rb") as file:
        return int.from_bytes(os.pread(file.fileno(), 8, HEAD_REALTIME), "little")


@contextmanager
def dated_back(guest: Guest) -> Iterator[None]:
    """Within the block, have the header of the oldest archive begin two days earlier. The times of the file stay."""
    oldest = min(guest.journal.glob("system@*.journal"), key=_head_us)
    _add_to_head(oldest, -2 * DAY_US)
    try:
        yield
    finally:
        _add_to_head(oldest, 2 * DAY_US)  # or `journalctl --verify` finds the file damaged


def _add_to_head(path: Path, span_us: int) -> None:
    times = path.stat()
    with path.open("r+b") as file:
        file.seek(HEAD_REALTIME)
        file.write((_head_us(path) + span_us).to_bytes(8, "little"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
