# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test beds: a scratch btrfs, a private journald, and what can be shown on them.

The host's own filesystems and journals are never touched.
"""
