# SPDX-License-Identifier: LGPL-2.1-or-later
"""Measurements of the host: each probe answers one question with every value that it saw.

A probe is a module with `measure(asked)`, a generator that yields one Measurement at its start and again as the
measurement grows. All that a probe starts, makes or stops is undone when the generator ends or is closed, and after a
SIGKILL by a child process.
"""
