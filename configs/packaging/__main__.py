# SPDX-License-Identifier: LGPL-2.1-or-later
"""The program in /usr/share/journalkeeper, where packages place it: the command runs this directory."""

import sys

from journalkeeper.cli import main

sys.exit(main())
