# SPDX-License-Identifier: LGPL-2.1-or-later
"""Packs what a host needs of a checkout into an archive: pack.py CHECKOUT

The same files make the same bytes, on any controller. The archive is kept in
the user's cache, alone; its path and SHA-256 are printed as JSON.
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
"""What configs/install --uninstall runs; it stands with the role, whose files are all that a controller has."""


def wanted(path: Path) -> bool:
    """Whether a host needs the file."""
    return not UNWANTED & {*path.parts} or path.as_posix() == WANTED_ALL_THE_SAME


def members(checkout: Path) -> list[Path]:
    """The files to pack, in one order everywhere."""
    found = []
    for name in WANTED:
        top = checkout / name
        if not top.exists():
            raise SystemExit(f"{checkout} is no checkout of journalkeeper: it has no {name}")
        inside = top.rglob("*") if top.is_dir() else [top]
        found += [path for path in inside if path.is_file() and wanted(path.relative_to(checkout))]
    return sorted(found, key=lambda path: path.relative_to(checkout).as_posix())


def pack(checkout: Path) -> bytes:
    """The archive; owners and times are nobody's."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in members(checkout):
            entry = tarfile.TarInfo(path.relative_to(checkout).as_posix())
            entry.size = path.stat().st_size
            entry.mode = 0o755 if os.access(path, os.X_OK) else 0o644
            with path.open("rb") as opened:
                archive.addfile(entry, opened)
    return gzip.compress(packed.getvalue(), mtime=0)


def main(checkout: str) -> None:
    """Pack, keep, and say where."""
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
