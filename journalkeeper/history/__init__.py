# SPDX-License-Identifier: LGPL-2.1-or-later
"""The history: a SQLite database in the state directory with runs, outcomes and extent counts, and its lock."""
