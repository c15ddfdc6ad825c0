# SPDX-License-Identifier: LGPL-2.1-or-later
"""Measurements of one's own host: a question each, answered with every value that was seen.

A probe is a module with `measured(asked)`, a generator that yields one Measurement as it begins and
again as that grows. What it starts, makes or stops is undone when it ends or is closed, and after a
SIGKILL by a watcher.
"""
