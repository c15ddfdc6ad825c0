# SPDX-License-Identifier: LGPL-2.1-or-later
"""The subvolumes that snapper, timeshift or btrbk make snapshots of, from their configuration files.

They count where the number of snapshots cannot be measured.

Source: snapper-configs(5); btrbk.conf(5); timeshift, src/Core/Main.vala, `save_app_config`.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

SNAPPER: Final = re.compile(r'^SUBVOLUME="?(.+?)"?\s*$', re.MULTILINE)
TIMESHIFT: Final = re.compile(r'"btrfs_mode"\s*:\s*"true"')
BTRBK: Final = re.compile(r"^\s*(volume|subvolume)\s+(\S.*?)\s*$", re.MULTILINE)


def find_tool(device: int, etc: str = "/etc") -> str:
    """Return the tool whose readable configuration in `etc` names the subvolume with st_dev `device`, or ""."""
    for tool, path in _list_subvolumes(etc):
        with suppress(OSError):
            if os.stat(path).st_dev == device:
                return tool
    return ""


def _list_subvolumes(etc: str) -> Iterator[tuple[str, str]]:
    """Yield ("snapper", "timeshift" or "btrbk", path) of each subvolume in the tool's files; timeshift's is "/"."""
    for path in glob.glob(f"{etc}/snapper/configs/*"):
        yield from (("snapper", found) for found in SNAPPER.findall(read_text(path)))
    if any(TIMESHIFT.search(read_text(path)) for path in (f"{etc}/timeshift/timeshift.json", f"{etc}/timeshift.json")):
        yield "timeshift", "/"
    volume = ""
    for word, value in BTRBK.findall(read_text(f"{etc}/btrbk/btrbk.conf") + read_text(f"{etc}/btrbk.conf")):
        if word == "volume":
            volume = value
        else:
            yield from (("btrbk", path) for path in glob.glob(os.path.join(volume, value)))


def read_text(path: str) -> str:
    """Return the text of a file, "" if it cannot be read."""
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
    return ""
