# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a guest's boot is said to take, beside a delay of which everybody knows how long it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.guest.host import Guest

pytestmark = [pytest.mark.guest, pytest.mark.root, pytest.mark.slow, pytest.mark.long]

DELAY_S = 3.0
TRIES = 8
DROP_IN = "/etc/systemd/system/systemd-journal-flush.service.d/delay.conf"


def test_a_sleep_before_the_flush_makes_the_boot_longer_by_that(make_guest: Callable[..., Guest]) -> None:
    guest = make_guest("bookworm")
    guest.boot()
    guest.reboot()
    plain = (guest.boot_seconds(), guest.flush_seconds())
    guest.shell(f"mkdir -p {DROP_IN.rpartition('/')[0]}; printf '[Service]\\nExecStartPre=sleep 3\\n' >{DROP_IN}")
    seen = []
    for _ in range(TRIES):
        guest.reboot()
        assert guest.flush_seconds() >= DELAY_S
        seen.append((guest.boot_seconds() - plain[0], guest.flush_seconds() - plain[1]))
        if all(abs(longer_s - DELAY_S) <= DELAY_S / 10 for longer_s in seen[-1]):
            return
    pytest.fail(f"none of {TRIES} boots is longer by {DELAY_S} s within 10%, both the boot and the flush: {seen}")
