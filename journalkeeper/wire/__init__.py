# SPDX-License-Identifier: LGPL-2.1-or-later
"""The JSON of the commands and of the bus; each record is described once. No I/O, no clock."""
