# SPDX-License-Identifier: LGPL-2.1-or-later
"""The rules of health: they turn evidence about a host into findings, and into one verdict. Pure: no I/O and no clock.

The commands and the service collect the evidence.
"""
