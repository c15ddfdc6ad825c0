# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lab without a lab: its traffic, and how a command fails."""

from __future__ import annotations

import itertools

import pytest

from journalkeeper.model.errors import KeeperError
from journalkeeper.probe import scratch_volume as volume
from journalkeeper.probe.bed import messages


def test_some_fields_are_new_in_every_message_and_some_come_back() -> None:
    sample = list(itertools.islice(messages(), 5000))
    assert len({fields["LAB_REQUEST"] for fields in sample}) == 5000
    assert len({fields["LAB_USER"] for fields in sample}) <= 2000
    assert all(fields["MESSAGE"] for fields in sample)


def test_a_command_that_fails_is_quoted_with_its_own_words() -> None:
    with pytest.raises(KeeperError, match=r"ls /nowhere/at/all: exit 2: .*No such file"):
        volume.run("ls", "/nowhere/at/all")
