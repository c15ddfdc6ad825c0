# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands of README and the pages that read or mend a journal, typed as they stand there."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from journalkeeper.probe.bed import Bed
from tests import documents
from tests.btrfs.test_man_examples import PATIENCE_S, Reader, ended
from tests.documents import Typed

pytestmark = [pytest.mark.root, pytest.mark.slow]


def test_every_command_does_what_it_says(bed: Bed, tmp_path: Path) -> None:
    commands = documents.run_by(Typed)
    assert len(commands) > 10
    reader = Reader(bed, tmp_path)
    for command in commands:
        process = reader.types(command.text)
        service = command.text.endswith(" daemon")
        if service:
            ended(process, when=(tmp_path / "own/history.db").exists)
        out, err = process.communicate(timeout=PATIENCE_S)
        if service:  # what it says is its log
            assert process.returncode in {0, -signal.SIGTERM}, err
        else:
            assert (process.returncode, err) == (0, ""), f"{command}: {out}"
