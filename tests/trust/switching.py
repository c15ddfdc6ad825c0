# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper` whose threads interrupt each other as often as they can: python -m tests.trust.switching WORDS

Its log has every line: those beyond the limit of a minute would be lost, and a traceback with them.
"""

from __future__ import annotations

import sys

from journalkeeper.cli import main
from journalkeeper.service import log

SWITCH_S = 1e-6
"""The interpreter's own is 5 ms."""

if __name__ == "__main__":
    log.LINES = 1 << 30  # type: ignore[misc]  # that of this process alone
    sys.setswitchinterval(SWITCH_S)
    sys.exit(main())
