# SPDX-License-Identifier: LGPL-2.1-or-later
"""`python -m journalkeeper` is the journalkeeper command."""

import sys

from journalkeeper.cli import main

sys.exit(main())
