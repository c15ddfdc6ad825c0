# SPDX-License-Identifier: LGPL-2.1-or-later
"""Measurements of one's own host: a question each, answered with every value that was seen.

A probe is a module with `measured(asked)`, a context manager that yields a Measurement. What it
starts, makes or stops is undone by the end of the block, and after a SIGKILL by a watcher.
"""
