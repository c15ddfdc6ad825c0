# SPDX-License-Identifier: LGPL-2.1-or-later
"""The former names of the records, for the commands that still use them."""

from __future__ import annotations

from journalkeeper.model import JournalFile, Stretch, Window
from journalkeeper.model.manager import Manager
from journalkeeper.model.recorded import Counters, Run, Sample, Totals
from journalkeeper.model.waiting import Wait

FILE = JournalFile
STRETCH = Stretch
WINDOW = Window
MANAGER = Manager
SAVING = Counters
RUN = Run
SAMPLE = Sample
TOTALS = Totals
WAIT = Wait
