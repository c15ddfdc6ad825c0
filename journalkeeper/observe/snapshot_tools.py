# SPDX-License-Identifier: LGPL-2.1-or-later
"""The configurations of snapper, timeshift and btrbk, for hosts where btrfs cannot be asked for snapshots.

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


def find_tool(device: int, root: str = "/") -> str:
    """Return the snapshot tool whose readable configuration names the subvolume with the st_dev `device`, or ""."""
    for tool, path in _list_subvolumes(os.path.join(root, "etc")):
        with suppress(OSError):
            if os.stat(path).st_dev == device:
                return tool
    return ""


def _list_subvolumes(etc: str) -> Iterator[tuple[str, str]]:
    """Yield ("snapper", "timeshift" or "btrbk", path) of each subvolume that the tool is configured to snapshot."""
    for path in glob.glob(f"{etc}/snapper/configs/*"):
        yield from (("snapper", found) for found in SNAPPER.findall(_read(path)))
    if any(TIMESHIFT.search(_read(path)) for path in (f"{etc}/timeshift/timeshift.json", f"{etc}/timeshift.json")):
        yield "timeshift", "/"
    volume = ""
    for word, value in BTRBK.findall(_read(f"{etc}/btrbk/btrbk.conf") + _read(f"{etc}/btrbk.conf")):
        if word == "volume":
            volume = value
        else:
            yield from (("btrbk", path) for path in glob.glob(os.path.join(volume, value)))


def _read(path: str) -> str:
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
    return ""
