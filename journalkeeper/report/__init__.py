# SPDX-License-Identifier: LGPL-2.1-or-later
"""The story of a file or directory, retention, and the HTML page, made from one frozen `Evidence`.

Pure: no I/O, no clock.
"""
