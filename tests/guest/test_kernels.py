# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tests of btrfs/ and execute/ on the kernels of Debian's releases.

JOURNALKEEPER_KERNELS=sid, with the names of releases, chooses others.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import pytest

from tests.daemon import CHECKOUT
from tests.guest import base, kernels

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.long]

RELEASES = os.environ.get("JOURNALKEEPER_KERNELS", "bookworm trixie").split()
FILES = ("tests/btrfs/test_btrfs_*.py", "tests/btrfs/test_execute*.py")
ELSEWHERE = "not (guest or long)"
EXHAUSTIVE = "power_cut or killed_at or becomes_full or running_journald_rotated or little_memory"
"""What tries each call in turn, or many journals, and takes minutes on one processor."""

SKIPPED = {"bookworm": 3, "trixie": 2}
"""How many tests a kernel may skip: those that need a throttle, and before 6.5 that of dirty pages (cachestat(2))."""


@pytest.mark.parametrize("release", RELEASES)
def test_on_the_kernel_of(release: str) -> None:
    try:
        root = kernels.fetch(release)
    except RuntimeError as error:
        pytest.skip(str(error))
    files = [os.fspath(path) for pattern in FILES for path in sorted(CHECKOUT.glob(pattern))]
    words = [
        "env", "-u", "JOURNALKEEPER_NO_SKIP", "PYTHONDONTWRITEBYTECODE=1", "timeout", "--kill-after=20", "1600",
        sys.executable, "-m", "pytest", "-n4", "--max-worker-restart=0", "-q", "-m", ELSEWHERE,
        "-k", f"not ({EXHAUSTIVE})", "-o", "cache_dir=/scratch/cache", "--timeout=300", "--tb=short", "--color=no",
        *files,
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(dir=base.cache()) as scratch:  # /tmp may be in memory
        said = kernels.run(root, CHECKOUT, words, Path(scratch), timeout_s=1700)
    counts = {what: int(number) for number, what in re.findall(r"(\d+) (passed|skipped|failed|errors?)\b", said)}
    assert "exit status 0\n" in said, "\n".join(
        [*re.findall(r"^(?:FAILED|ERROR|UML) .*", said, re.MULTILINE), said[-3000:]]
    )
    assert counts["passed"] > 150, said[-3000:]
    assert counts.get("skipped", 0) <= SKIPPED.get(release, 2), said[-3000:]
