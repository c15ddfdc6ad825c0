# SPDX-License-Identifier: LGPL-2.1-or-later
"""The numbers of a host, and the text file with them for Prometheus."""
