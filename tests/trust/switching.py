# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper` whose threads interrupt each other as often as they can: python -m tests.trust.switching WORDS"""

from __future__ import annotations

import sys

from journalkeeper.cli import main

SWITCH_S = 1e-6
"""The interpreter's own is 5 ms."""

if __name__ == "__main__":
    sys.setswitchinterval(SWITCH_S)
    sys.exit(main())
