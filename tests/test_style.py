# SPDX-License-Identifier: LGPL-2.1-or-later
"""Ruff and mypy have nothing to say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent


@pytest.mark.parametrize("words", ["ruff check", "ruff format --check", "mypy --no-error-summary"])
def test_there_is_nothing_to_say_against_the_code(words: str) -> None:
    """It takes long because mypy reads everything when its cache is empty."""
    done = subprocess.run(
        [sys.executable, "-m", *words.split()], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
