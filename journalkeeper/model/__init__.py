# SPDX-License-Identifier: LGPL-2.1-or-later
"""Immutable types that all packages share.

Names of bytes end in `_bytes`. Names of times (microseconds since the epoch) and of intervals end in `_us`.
"""

from journalkeeper.model.files import Extents, Header, Instance, JournalFile, Stretch, Sums, Volume, count_ideal_extents
from journalkeeper.model.plans import Action, Host, Outcome, Past, Plan, Range, Refusal, Request, Rotation, Skip, Window
from journalkeeper.model.words import GIB, KIB, MAX_FILE_BYTES, MIB, Kind, Reason, Result, State, Verb
