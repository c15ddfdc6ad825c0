# SPDX-License-Identifier: LGPL-2.1-or-later
"""One look at a host: files, flushes, intake delay, disk load. Looking changes nothing."""
