# SPDX-License-Identifier: LGPL-2.1-or-later
"""journald 257 and that of sid delete at a rotation at most what its price says."""

from __future__ import annotations

import pytest

from tests.btrfs.test_history_loss import LIMITS, list_settings, require_predicted
from tests.guest.base import tarball
from tests.guest.conftest import require_guest
from tests.guest.host import Guest

pytestmark = [pytest.mark.guest, pytest.mark.root, pytest.mark.slow, pytest.mark.long]

LOG = """
import base64, os, sys
from socket import AF_UNIX, SOCK_DGRAM, socket
with socket(AF_UNIX, SOCK_DGRAM) as journald:
    journald.connect("/run/systemd/journal/socket")
    for _ in range(int(sys.argv[1]) // 12_000):
        journald.send(b"MESSAGE=" + base64.b64encode(os.urandom(9000)) + b"\\n")
"""


@pytest.mark.parametrize("release", ["trixie", "sid"])
@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_a_rotation_deletes_what_was_predicted_or_one_file_less(release: str, limits: dict[str, int]) -> None:
    require_guest()
    try:
        tarball(release)
    except RuntimeError as error:  # on some days the packages of sid cannot be installed together
        pytest.skip(str(error))
    with Guest(release, nocow=False) as guest:
        place = guest.root / "etc/systemd/journald.conf.d"
        place.mkdir(exist_ok=True)
        rates = "RateLimitIntervalSec=0\nForwardToSyslog=no\nAudit=no\n"
        (place / "limit.conf").write_text("\n".join(["[Journal]", *list_settings(limits), rates]))
        guest.boot()

        def log(size_bytes: int) -> None:
            guest.run("python3", "-", str(size_bytes), text_in=LOG)
            guest.run("journalctl", "--sync")

        require_predicted(guest.journal, limits, log, lambda: guest.run("journalctl", "--rotate"))
