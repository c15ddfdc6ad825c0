# SPDX-License-Identifier: LGPL-2.1-or-later
"""A file's or directory's story, retention, and the HTML page, made from one frozen `Evidence`. Pure: no I/O, no clock.

The evidence is collected by journalkeeper.gather.
"""
