# SPDX-License-Identifier: LGPL-2.1-or-later
"""File names, headers, directories and settings as journald has them.

All knowledge of systemd-journald's formats is in here; nothing here
writes, and nothing here knows btrfs.
"""
