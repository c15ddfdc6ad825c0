# SPDX-License-Identifier: LGPL-2.1-or-later
"""The record of what was done and seen: a SQLite database in the state directory, and the lock beside it."""
