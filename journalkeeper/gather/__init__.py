# SPDX-License-Identifier: LGPL-2.1-or-later
"""Collect the evidence that the health rules judge."""
