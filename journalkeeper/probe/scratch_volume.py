# SPDX-License-Identifier: LGPL-2.1-or-later
"""A scratch btrfs in a file that is mounted through a loop device, and the commands that make and undo such things.

Whatever outlives a process is undone by a child process, also after a SIGKILL.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from journalkeeper.model.errors import KeeperError

PREFIX: Final = "journalkeeper-lab-"
"""The prefix of the directory of every scratch volume, by which leftovers can be found."""

ISOLATED: Final = "JOURNALKEEPER_LAB_ISOLATED"
"""The environment variable with the id of the process that `isolate` moved to its own mount namespace."""

OWN_MOUNTS: Final = ("unshare", "--mount", "--propagation", "private")
"""The command prefix that runs a command in its own mount namespace, out of which no mount spreads."""

DIE_WITH_US: Final = ("setpriv", "--pdeathsig", "KILL", "--")
SECTOR_BYTES: Final = 512

MAKE_VOLUME: Final = """
set -e
base=$1 size=$2 options=$3 devices=
shift 3
undo() {
    umount --lazy "$base/mnt" 2>&- || :
    [ -z "$devices" ] || losetup --detach $devices
    rm -rf --one-file-system "$base"
}
trap undo EXIT
# systemctl stop sends it to every process of a unit, and dash(1) then skips the trap of EXIT
trap exit TERM
mkdir "$base/mnt"
if [ $# = 0 ]; then
    # the image inherits it: its own extents are not what is measured
    [ "$(stat --file-system --format=%T "$base")" != btrfs ] || chattr +C "$base"
    set -- "$base/disk.img"
    truncate --size="$size" "$1"
    mkfs.btrfs -q -d single "$1" >/dev/null
fi
for image; do
    # two mounts of one image destroy its filesystem
    timeout 10 sh -c 'while losetup --associated "$1" | grep -q .; do sleep 0.1; done' sh "$image"
    devices="$devices $(losetup --find --show "$image")"
done
set -- $devices
[ $# = 1 ] || btrfs device scan "$@" >&2
mount -t btrfs -o "$options" "$1" "$base/mnt"
echo "$@"
read -r _ || :
"""


def run(*argv: str | os.PathLike[str], timeout_s: float = 300) -> str:
    """Run a command, and return its standard output.

    Raises: KeeperError with the command's error message if it fails, or if it did not end in time; OSError.
    """
    command = " ".join(os.fspath(word) for word in argv)
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=True).stdout
    except subprocess.CalledProcessError as error:
        raise KeeperError(f"{command}: exit {error.returncode}: {error.stderr.strip()}") from error
    except subprocess.TimeoutExpired as error:
        raise KeeperError(f"{command}: it did not end within {timeout_s:g} s") from error


@contextmanager
def undo_at_end(*argv: str) -> Iterator[str]:
    """Start a command that undoes its own work when its stdin ends. Yield its first line, which says that it is ready.

    The block's end waits for it. A failure to undo is not reported.

    Raises: KeeperError with the command's error message if it ends without a line; OSError.
    """
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=said, text=True, start_new_session=True, restore_signals=False
        ) as child,
    ):
        try:
            if first := next(iter(child.stdout or ()), ""):
                yield first.strip()
        finally:
            child.communicate()  # unlike the end of Popen's block, it waits also after Ctrl-C
        if not first:
            said.seek(0)
            raise KeeperError(said.read().strip() or f"{argv[0]} ended before it was ready")


def wait_until(is_done: Callable[[], bool], complaint: str, timeout_s: float = 60) -> None:
    """Call `is_done` in short intervals until it is True. Raises: KeeperError "`complaint` within `timeout_s` s"."""
    deadline_s = time.monotonic() + timeout_s
    while not is_done():
        if time.monotonic() > deadline_s:
            raise KeeperError(f"{complaint} within {timeout_s:g} s")
        time.sleep(0.005)


def isolate() -> None:
    """Run this command anew in its own mount namespace, and return only in the new run, with the same process id.

    Otherwise a namespace that another process makes meanwhile would copy our mounts and keep them mounted. unshare(1)
    reports a failure. Raises: OSError if unshare(1) cannot be executed.
    """
    if os.environ.pop(ISOLATED, None) == str(os.getpid()):
        return
    words = [*OWN_MOUNTS, "--", sys.executable, *sys.orig_argv[1:]]
    os.environ[ISOLATED] = str(os.getpid())
    sys.stdout.flush()
    os.execvp(words[0], words)  # noqa: S606 - a list of words


class ScratchVolume(ExitStack):
    """A new btrfs of `size` (as in truncate(1)), mounted with `options` in a temporary directory below `parent`.

    It ends with the block, with `close`, and with this process; a failure to undo is not reported, except of the limit.
    With `images`, files of the caller that contain a btrfs are mounted instead, and kept.

    Raises: KeeperError with the error message of the tool that failed.
    """

    def __init__(
        self, size: str = "1G", *, options: str = "defaults", parent: Path | None = None, images: Sequence[Path] = ()
    ) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self.mountpoint = self.base / "mnt"
        self.options = options
        self.images = list(images) or [self.base / "disk.img"]
        self._iops = self._counted_before = 0
        words = ("sh", "-c", MAKE_VOLUME, "sh", str(self.base), size, self.options, *map(str, images))
        self.devices = self.enter_context(undo_at_end(*words)).split()
        self.device = self.devices[0]
        self.callback(self.throttle, 0)
        self._counted_before = self.count_written_bytes()

    def mount(self) -> None:
        """Mount the volume at `mountpoint`. Raises: KeeperError if mount(8) fails."""
        run("mount", "-t", "btrfs", "-o", self.options, self.device, self.mountpoint)

    def unmount(self) -> None:
        """Unmount lazily: it stays in use while a process has a file open (`await_release`). Raises: KeeperError."""
        run("umount", "--lazy", self.mountpoint)

    def remount(self) -> None:
        """Unmount, `await_release`, and mount again: neither the volume nor its images are then in the page cache.

        Raises: KeeperError as these. The volume may then be left unmounted.
        """
        self.unmount()
        self.await_release()
        for path in self.images:
            with open(path, "rb") as image:
                os.fsync(image.fileno())
                os.posix_fadvise(image.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.mount()

    def await_release(self, timeout_s: float = 30) -> None:
        """Wait until the volume is mounted nowhere and no process uses it. Raises: KeeperError after `timeout_s`."""

        def is_released() -> bool:
            with suppress(OSError):  # EBUSY
                os.close(os.open(self.device, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC))
                return True
            return False

        complaint = f"{self.device} is still mounted in another mount namespace: it was not released"
        wait_until(is_released, complaint, timeout_s)

    def throttle(self, iops: int) -> None:
        """Limit the first device to `iops` reads and `iops` writes a second; 0 removes the limit.

        The limit is that of this process's cgroup (io.max), or of blkio's root group. An unchanged limit is not set.

        Raises: KeeperError if the kernel has neither; OSError if the limit cannot be written.
        """
        if iops == self._iops:
            return
        number = Path("/sys/class/block", Path(self.device).name, "dev").read_text().strip()
        group = Path("/proc/self/cgroup").read_text().split("::", 1)[-1].strip().lstrip("/")
        io_max, blkio = Path("/sys/fs/cgroup", group, "io.max"), Path("/sys/fs/cgroup/blkio")
        if io_max.exists():
            io_max.write_text(f"{number} riops={iops or 'max'} wiops={iops or 'max'}\n")
        elif blkio.exists():
            for way in ("read", "write"):
                (blkio / f"blkio.throttle.{way}_iops_device").write_text(f"{number} {iops}\n")
        else:
            raise KeeperError("no blkio.throttle and no io.max: this kernel or cgroup cannot limit IOPS")
        self._iops = iops

    def count_written_bytes(self) -> int:
        """Return the bytes written to the first device since the first mount. Source: Documentation/block/stat.rst."""
        counter = Path("/sys/class/block", Path(self.device).name, "stat").read_text().split()[6]
        return int(counter) * SECTOR_BYTES - self._counted_before
