# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings, one file's story and the page, made of one frozen `Evidence`. Pure: no I/O and no clock.

What gathers the evidence is in journalkeeper.gather.
"""
