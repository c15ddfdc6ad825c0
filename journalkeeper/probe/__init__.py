# SPDX-License-Identifier: LGPL-2.1-or-later
"""Measurements of the host: each probe answers one question with every value that it saw.

A probe is a module with `measure(asked, found)`, which fills a Measurement. After a KeyboardInterrupt the Measurement
has all values so far. All that a probe starts or makes is undone when it ends, and after a SIGKILL by a child process.
`explain` asks `read_cost`, and `lab` `compare`.
"""
