# SPDX-License-Identifier: LGPL-2.1-or-later
"""Gathers the evidence that doctor, explain and report are made of. It changes nothing."""
