# SPDX-License-Identifier: LGPL-2.1-or-later
"""`lab compare`, tests/try and the private volumes and journalds of both show what they promise and leave nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from journalkeeper.model.errors import KeeperError
from journalkeeper.probe.bed import PrivateJournald
from journalkeeper.probe.compare import STRATEGIES
from journalkeeper.probe.scratch_volume import PREFIX, ScratchVolume, run
from tests import demo
from tests.answers import check
from tests.conftest import leftovers
from tests.daemon import CHECKOUT
from tests.patience import PATIENCE_S, eventually

pytestmark = pytest.mark.root
MIB = 1 << 20


def command(directory: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "journalkeeper", "lab", "compare", str(directory), *words]


@pytest.mark.slow
@pytest.mark.long
def test_each_strategy_has_its_effect(tmp_path: Path) -> None:
    """It takes long because six journals are aged, flushed and read cold at 900 requests a second."""
    done = subprocess.run(
        command(tmp_path, "--extents=800", "--iops=900", "-j"), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    check("lab", found)
    rows = {row["strategy"]: row for row in found["strategies"]}
    assert list(rows) == [strategy.name for strategy in STRATEGIES]
    assert (found["directory"], found["iops"]) == (str(tmp_path), 900)
    extents = {name: row["active_extents"] for name, row in rows.items()}
    assert extents["untouched"] >= 800
    assert all(extents[name] < 100 for name in ("NOCOW", "defrag", "rotate", "keeper")), extents
    assert [name for name, row in rows.items() if not row["checksummed"]] == ["NOCOW"]
    assert rows["keeper"]["disk_bytes"] < rows["rotate"]["disk_bytes"]
    assert rows["keeper"]["extents"] < rows["rotate"]["extents"]
    for row in rows.values():
        assert row["last_s"] > 0
        assert row["written_bytes"] > MIB
    assert await_no_traces(tmp_path) == []


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The command, with its first volume mounted."""
    with subprocess.Popen(command(tmp_path, "--extents=15000"), stderr=subprocess.PIPE, text=True) as child:
        while f"{tmp_path}/{PREFIX}" not in Path(f"/proc/{child.pid}/mountinfo").read_text():  # of its own namespace
            assert child.poll() is None
            time.sleep(0.05)
        yield child
        child.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_takes_everything_down(running: subprocess.Popen[str], tmp_path: Path, number: signal.Signals) -> None:
    running.send_signal(number)
    _, said = running.communicate(timeout=PATIENCE_S)
    if number != signal.SIGKILL:
        assert (running.returncode, said) == (1, "journalkeeper: lab was interrupted\n")
    assert await_no_traces(tmp_path) == []


def test_it_says_when_there_is_no_space_left() -> None:
    with ScratchVolume("128M") as volume:
        done = subprocess.run(command(volume.mountpoint), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "are free, 1.0G are needed" in done.stderr


# tests/try


SMALL = ("--extents", "800", "--iops", "0")


def traces(directory: Path) -> list[str]:
    """Return the mounts, loop devices and files that are in `directory`."""
    return leftovers((f"{directory}/",)) + [str(path) for path in directory.iterdir()]


def await_no_traces(directory: Path) -> list[str]:
    """Wait until the kernel has cleared the traces, and return those that stay."""
    eventually(lambda: not traces(directory))
    return traces(directory)


def test_it_shows_a_better_archive_with_the_same_entries(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    argv = [sys.executable, demo.__file__, "--directory", str(tmp_path), *SMALL]
    done = subprocess.run(argv, env={**os.environ, "COLUMNS": "100"}, check=False)
    out, err = capfd.readouterr()
    assert done.returncode == 0, out + err
    lines = {line[:28].strip(): line[28:].split() for line in out.splitlines()}
    before, after, *_ = lines["extents (filefrag)"]
    assert int(before) >= 800
    assert int(after) <= 250
    assert lines["journalctl --verify"] == ["PASS", "PASS"]
    assert out.count("$ journalkeeper ") == 4
    shown = out.replace(str(tmp_path), "")
    assert [line for line in shown.splitlines() if len(line) > 100 and line[0] != "$"] == []
    assert await_no_traces(tmp_path) == []


CONTAINER = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", "--")
"""What runs a command as root without CAP_SYS_ADMIN, as most containers do."""


CHROOT = """
mount -t tmpfs none "$1"
for name in /*; do
    [ ! -d "$name" ] || { mkdir -p "$1/root$name"; mount --rbind "$name" "$1/root$name"; }
done
exec chroot "$1/root" sh -ec 'cd "$1"; . tests/setup.sh; require_mounts TOOL REMEDY; echo passed' sh "$2"
"""
"""What checks for mounts in a chroot, whose / is a directory and no mount point."""


def test_root_may_mount_in_a_chroot_whose_root_is_no_mount_point(tmp_path: Path) -> None:
    words = ("unshare", "--mount", "sh", "-ec", CHROOT, "sh", str(tmp_path), str(CHECKOUT))
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout == "passed\n", done.stderr


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("tests/try", "--help"), 0, "--extents N"),
        ((*CONTAINER, "tests/try"), 1, "tests/try: root may not mount here (a container without CAP_SYS_ADMIN)."),
        ((*CONTAINER, "tests/run", "--all"), 1, "tests/run --fast needs no mounts."),
    ],
)
def test_help_and_refusals_come_before_the_build(words: tuple[str, ...], status: int, says: str) -> None:
    """With a PATH that has no Python, no package manager and no mktemp, so that nothing can be built."""
    with tempfile.TemporaryDirectory() as place:
        for tool in ("sed", "id", "unshare", "setpriv", "dirname", "sh", "losetup"):
            Path(place, tool).symlink_to(str(shutil.which(tool)))
        done = subprocess.run(words, cwd=CHECKOUT, env={"PATH": place}, capture_output=True, text=True, check=False)
    assert (done.returncode, says in done.stdout + done.stderr) == (status, True), done.stdout + done.stderr


# scratch volumes and private journalds


def holds(device: str, image: Path) -> bool:
    try:
        path = Path(f"/sys/block/{Path(device).name}/loop/backing_file").read_text().strip()
    except OSError:
        return False  # attached to nothing
    return path.endswith(str(image))  # attached in another namespace, it may begin further up


def test_a_volume_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeeperError, match="mount: "):
        ScratchVolume(options="nonsense", parent=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_held_open_does_not_keep_the_volume_mounted() -> None:
    volume = ScratchVolume()
    with open(volume.mountpoint / "held", "w"):
        volume.close()
    assert str(volume.mountpoint) not in Path("/proc/self/mountinfo").read_text()
    assert not volume.base.exists()


def test_after_a_remount_neither_the_volume_nor_its_image_is_in_memory() -> None:
    with ScratchVolume() as volume:
        (volume.mountpoint / "file").write_bytes(os.urandom(16 << 20))
        volume.remount()
        assert int(run("fincore", "--bytes", "--noheadings", "--output=RES", volume.images[0])) < 4 << 20


def test_a_throttle_is_a_limit_and_ends_with_the_volume() -> None:
    with ScratchVolume() as volume:
        try:
            volume.throttle(100)
        except KeeperError as error:
            assert "cannot limit IOPS" in str(error)  # noqa: PT017 - either it works or it says why
            return
        number = os.stat(volume.device).st_rdev
        words = f"{os.major(number)}:{os.minor(number)} "
        limits = [Path("/sys/fs/cgroup/blkio/blkio.throttle.read_iops_device"), *Path("/sys/fs/cgroup").glob("io.max")]
        assert any(words in limit.read_text() for limit in limits if limit.exists())
    # another test can have this device by now, and a limit of its own
    assert eventually(lambda: not any(words in limit.read_text() for limit in limits if limit.exists()))


def test_a_command_that_fails_is_quoted_with_its_own_words() -> None:
    with pytest.raises(KeeperError, match=r"ls /nowhere/at/all: exit 2: .*No such file"):
        run("ls", "/nowhere/at/all")
    with pytest.raises(KeeperError, match=r"sleep 9: it did not end within 0\.1 s"):
        run("sleep", "9", timeout_s=0.1)


def test_the_hosts_journal_contains_no_entry_of_a_private_journald() -> None:
    with ScratchVolume() as scratch, PrivateJournald(scratch.mountpoint) as journald:
        assert os.readlink(f"/proc/{journald.pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt")
        journald.log("nobody else hears this", LAB_COLOUR="invisible")
        journald.sync()
        for directory in ("/run/log/journal", "/var/log/journal"):
            if any(Path(directory).rglob("*.journal")):
                assert "nobody else" not in run(
                    "journalctl", "-D", directory, "-q", "-o", "cat", "LAB_COLOUR=invisible"
                )


def test_one_journald_does_not_hold_anothers_volume() -> None:
    with ScratchVolume() as outer, PrivateJournald(outer.mountpoint):
        inner = ScratchVolume()
        with PrivateJournald(outer.mountpoint / "second"):
            device, image = inner.device, inner.images[0]
            inner.close()
            assert eventually(lambda: not holds(device, image))
