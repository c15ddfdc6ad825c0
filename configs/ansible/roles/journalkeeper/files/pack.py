# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pack the files of a checkout that a host needs into an archive: pack.py CHECKOUT

The same files make the same bytes on every controller. The archive replaces the one before in the user's cache, and
its path and SHA-256 are printed as JSON.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
import tempfile
from pathlib import Path

WANTED = ("LICENSE", "README.md", ".github/CHANGELOG.md", "configs", "journalkeeper", "pyproject.toml", "units")
UNWANTED = {"__pycache__", "ansible", "packaging", ".ansible"}
WANTED_ALL_THE_SAME = "configs/ansible/roles/journalkeeper/files/purge.sh"
"""configs/install --uninstall runs this script. It is one of the role's files, because the role runs it, too."""


def clean(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return the entry without owner and times; None if a host does not need it."""
    if UNWANTED & {*Path(entry.name).parts} and entry.name != WANTED_ALL_THE_SAME:
        return None
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.mode & 0o100 else 0o644
    return entry


def pack(checkout: Path) -> bytes:
    """Return the archive. Raises: SystemExit if a file is missing."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in (*WANTED, WANTED_ALL_THE_SAME):
            if not (checkout / name).exists():
                raise SystemExit(f"{checkout} is no checkout of journalkeeper: it has no {name}")
            archive.add(checkout / name, name, filter=clean)
    return gzip.compress(packed.getvalue(), mtime=0)


def main(checkout: str) -> None:
    """Write the archive to the cache, remove older ones, and print its path and SHA-256."""
    data = pack(Path(checkout))
    sha256 = hashlib.sha256(data).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "journalkeeper" / "ansible"
    cache.mkdir(parents=True, exist_ok=True)
    kept = cache / f"{sha256}.tar.gz"
    for old in cache.glob("*.tar.gz"):
        if old != kept:
            old.unlink(missing_ok=True)
    if not kept.exists():
        with tempfile.NamedTemporaryFile(dir=cache, delete=False) as fresh:
            fresh.write(data)
        os.replace(fresh.name, kept)
    json.dump({"path": str(kept), "sha256": sha256}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
