# SPDX-License-Identifier: LGPL-2.1-or-later
"""The fleet's bench runs, with one host, and its second run changes nothing."""

from __future__ import annotations

import pytest

from tests import ansible
from tests.bench.test_bench_smoke import figures
from tests.guest.host import missing

pytestmark = [pytest.mark.guest, pytest.mark.root, pytest.mark.slow, pytest.mark.long]


def test_fleet_runs_one_playbook_three_times() -> None:
    if reason := missing() or ansible.missing():
        pytest.skip(reason)
    found = figures("fleet", "--hosts", "1")
    assert found["hosts that failed"] == ("0", "met")
    assert found["changes in the second run"] == ("0", "met")
    assert "everything is installed: a host, median" in found
