# SPDX-License-Identifier: LGPL-2.1-or-later
"""The journald hands: file names, headers, directories and settings as journald has them.

The one rule: all knowledge of systemd-journald's formats is in here; nothing here
writes, and nothing here knows btrfs.
"""
