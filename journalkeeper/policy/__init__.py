# SPDX-License-Identifier: LGPL-2.1-or-later
"""Decide what to do to each file, and why, or why not.

The package touches no path, reads no clock and makes no ioctl. A Host goes in, a Plan comes out, and the same Host
always gives the same Plan.
"""
