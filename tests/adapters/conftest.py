# SPDX-License-Identifier: LGPL-2.1-or-later
"""Places for tests of the library's edges."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that nobody can get to."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)  # noqa: S103 - the point
        yield Path(name)
