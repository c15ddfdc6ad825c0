# SPDX-License-Identifier: LGPL-2.1-or-later
"""journalkeeper keeps systemd-journald's files whole on btrfs."""

__version__ = "0.2.0"
