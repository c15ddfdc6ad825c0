# SPDX-License-Identifier: LGPL-2.1-or-later
"""journald's file names, file headers, directories, settings and calls.

Only this package knows systemd-journald's formats. It writes no file and does not know btrfs.
"""
