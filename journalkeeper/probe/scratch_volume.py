# SPDX-License-Identifier: LGPL-2.1-or-later
"""A scratch btrfs in a file, mounted through a loop device and gone afterwards.

Whatever was mounted here is unmounted here, also after an error. The
loop devices go by themselves (autoclear) when the last of us and the mount has gone,
so that even SIGKILL in a mount namespace of our own leaves nothing behind.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Self

PREFIX = "journalkeeper-lab-"
"""Every scratch volume's directory begins so: who looks for leftovers looks for this."""

TOOLS = {
    "mkfs.btrfs": "btrfs-progs",
    "btrfs": "btrfs-progs",
    "losetup": "util-linux or mount",
    "mount": "mount",
    "umount": "mount",
    "truncate": "coreutils",
    "stat": "coreutils",
    "chattr": "e2fsprogs",
    "filefrag": "e2fsprogs",
}
ISOLATED = "JOURNALKEEPER_LAB_ISOLATED"
"""The id of the process that `isolate` has put into a mount namespace of its own."""

SECTOR_BYTES = 512
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SHARED_CHROOT = "this chroot shares its mounts: `mount --bind ROOT ROOT` before entering it"
THROTTLES = ("read_iops_device", "write_iops_device")
DISKS = {"single": 1, "dup": 1, "raid1": 2, "raid10": 4}


def run(*argv: str | os.PathLike[str], timeout_s: float = 300) -> str:
    """Run a command and return what it printed.

    Raises: RuntimeError with the command's own words if it fails.
    """
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        command = " ".join(os.fspath(word) for word in argv)
        raise RuntimeError(f"{command}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def _works(*argv: str) -> bool:
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def own_mounts() -> tuple[str, ...] | None:
    """The words that run a command in a mount namespace of its own; None if they would be heard outside.

    In a chroot "/" is no mount point, and then its propagation cannot be changed: that
    is fine unless it is shared, which every mount made below would show.
    Source: mount_namespaces(7), unshare(1).
    """
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    if any(fields[4] == "/" for fields in mounts):
        return ("unshare", "--mount", "--propagation", "private")
    if any(word.startswith("shared:") for fields in mounts for word in fields):
        return None
    return ("unshare", "--mount", "--propagation", "unchanged")


def isolate() -> None:
    """Start this program again, as this process, in a mount namespace of its own; return where that was done.

    A namespace that another process makes meanwhile would have a copy of our mounts, and what
    we unmount would stay mounted there. After SIGKILL the mounts go with the last process.

    Raises: RuntimeError in a chroot that shares its mounts, which `missing` says beforehand.
    """
    if os.environ.pop(ISOLATED, None) == str(os.getpid()):
        return
    alone = own_mounts()
    if alone is None:
        raise RuntimeError(SHARED_CHROOT)
    os.environ[ISOLATED] = str(os.getpid())
    sys.stdout.flush()
    os.execvp(alone[0], [*alone, "--", sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - a list of words


def raise_on_signals() -> None:
    """Let every signal that ends a command unmount and remove everything on the way out, once.

    It raises KeyboardInterrupt with the signal's number; further ones wait until that is done.
    """

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for other in INTERRUPTS:
            signal.signal(other, signal.SIG_IGN)
        # no word here: a handler may run in the middle of a write, and files are not re-entrant
        raise KeyboardInterrupt(number)

    for number in INTERRUPTS:
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup(1) has it
            signal.signal(number, interrupt)


def missing() -> str | None:
    """Why no scratch volume can be made here, in one line; None if it can."""
    if os.geteuid() != 0:
        return "only root may set up loop devices and mount them"
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            return f"{tool} is not installed (package {package})"
    return _refused()


def _refused() -> str | None:
    """What the kernel or a container keeps from root here."""
    if "\tbtrfs\n" not in Path("/proc/filesystems").read_text() and not _works("modprobe", "btrfs"):
        return "this kernel has no btrfs"
    alone = own_mounts()
    if alone is None:
        return SHARED_CHROOT
    if not _works(*alone, "true"):
        return "root may not mount here (a container without CAP_SYS_ADMIN?)"
    if not _works("losetup", "--find"):
        return "this machine offers no loop devices (see /dev/loop-control and `losetup --find`)"
    return None


class ScratchVolume:
    """A btrfs of `size` (as truncate(1) takes it) under a temporary directory.

    As a context manager it unmounts and removes everything on the way out.
    `profile` is mkfs.btrfs's data profile; raid1 makes a second image, raid10 four.
    `image` is copied instead of making a new filesystem; it keeps its UUID, so mount
    one of the two at a time. `base` is a directory of the caller's: a filesystem that is
    in it already is used as it is, and both are still there after `close`.
    """

    def __init__(
        self,
        size: str = "1G",
        *,
        profile: str = "single",
        options: str = "",
        image: Path | None = None,
        parent: str | os.PathLike[str] | None = None,
        base: Path | None = None,
    ) -> None:
        self.base = base or Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self._kept = base is not None
        self.mountpoint = self.base / "mnt"
        self.options = options
        self.images = [self.base / f"disk{n}.img" for n in range(DISKS[profile])]
        self.devices: list[str] = []
        self._held: list[int] = []
        self._throttled = False
        try:
            self.mountpoint.mkdir(parents=True, exist_ok=True)
            if run("stat", "--file-system", "--format=%T", self.base).strip() == "btrfs":
                run("chattr", "+C", self.base)  # the image inherits it: its own extents are not what is measured
            if self.images[-1].exists():
                for path in self.images:
                    _require_detached(path)
            elif image is None:
                for path in self.images:
                    run("truncate", "-s", size, path)
                run("mkfs.btrfs", "-q", "-d", profile, *self.images)
            else:
                run("cp", "--sparse=always", image, self.images[0])
            for path in self.images:
                self._attach(path)
            if len(self.devices) > 1:
                run("btrfs", "device", "scan", *self.devices)
            self._counted_before = self._counted_bytes()
            self.mount()
        except BaseException:
            self.close()
            raise

    def _attach(self, image: Path) -> None:
        """Set up a loop device that lives as long as we hold it open or it is mounted.

        Detaching a device in use marks it LO_FLAGS_AUTOCLEAR (Source: losetup(8), --detach).
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
        try:  # a device that was set up and is not yet detached would stay
            device = run("losetup", "--find", "--show", image).strip()
            self.devices.append(device)
            self._held.append(os.open(device, os.O_RDONLY | os.O_CLOEXEC))
            run("losetup", "--detach", device)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def device(self) -> str:
        """The first loop device."""
        return self.devices[0]

    def mount(self) -> None:
        """Mount the volume."""
        words = ["mount", "-t", "btrfs"]
        if self.options:
            words += ["-o", self.options]
        run(*words, self.device, self.mountpoint)

    def unmount(self) -> None:
        """Unmount, trying for five seconds while somebody still holds a file."""
        if not os.path.ismount(self.mountpoint):  # also what a command mounted that a signal interrupted
            return
        for attempt in range(25):
            try:
                run("umount", self.mountpoint)
                break
            except RuntimeError:
                if attempt == 24:
                    run("umount", "--lazy", self.mountpoint)
                time.sleep(0.2)

    def remount(self) -> None:
        """Unmount and mount again: neither the volume nor its images are in the page cache then.

        Raises: RuntimeError if the volume is mounted in another mount namespace, too.
        """
        self.unmount()
        self.await_release()
        for path in self.images:
            with open(path, "rb") as image:
                os.fsync(image.fileno())
                os.posix_fadvise(image.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.mount()

    def await_release(self, timeout_s: float = 30) -> None:
        """Wait until the volume is mounted nowhere, in no mount namespace.

        An exclusive open of its device fails while it is mounted (open(2), O_EXCL without O_CREAT).

        Raises: RuntimeError if it still is after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                os.close(os.open(self.device, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC))
                return
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"{self.device} is still mounted in another mount namespace, one made by `unshare --mount` "
                    "meanwhile? Run this under `unshare --mount` itself, and nobody copies its mounts"
                )
            time.sleep(0.01)

    def throttle(self, iops: int) -> None:
        """Limit reads and writes of the device to `iops` a second each; 0 lifts the limit.

        Raises: RuntimeError where the kernel offers neither blkio nor io.max.
        """
        status = os.stat(self.device)
        number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        blkio = Path("/sys/fs/cgroup/blkio")
        if (blkio / f"blkio.throttle.{THROTTLES[0]}").exists():
            for name in THROTTLES:
                (blkio / f"blkio.throttle.{name}").write_text(f"{number} {iops}\n")
        else:
            own = Path("/sys/fs/cgroup") / Path("/proc/self/cgroup").read_text().split("::", 1)[-1].strip().lstrip("/")
            if not (own / "io.max").exists():
                raise RuntimeError("no blkio.throttle and no io.max: this kernel or cgroup cannot limit IOPS")
            value = str(iops) if iops else "max"
            (own / "io.max").write_text(f"{number} riops={value} wiops={value}\n")
        self._throttled = iops > 0

    def written_bytes(self) -> int:
        """What was written to the first device since the volume was first mounted."""
        return self._counted_bytes() - self._counted_before

    def _counted_bytes(self) -> int:
        """A loop device that was another's before goes on counting (Documentation/block/stat.rst)."""
        return int(Path("/sys/class/block", Path(self.device).name, "stat").read_text().split()[6]) * SECTOR_BYTES

    def close(self) -> None:
        """Unmount, detach, remove; each step also when the one before it failed."""
        if not self.base.exists():
            return
        with ExitStack() as steps:
            if not self._kept:
                steps.callback(shutil.rmtree, self.base)
            steps.callback(self._release)
            steps.callback(self.unmount)
            if self._throttled:
                steps.callback(self.throttle, 0)

    def _release(self) -> None:
        """Let go of the loop devices: the kernel clears each at its last close."""
        while self._held:
            os.close(self._held.pop())
        self.devices.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _require_detached(image: Path, timeout_s: float = 10) -> None:
    """Wait until no loop device uses `image`: two mounts of one image destroy its filesystem.

    Raises: RuntimeError if a loop device still uses it after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while users := run("losetup", "--noheadings", "--output=NAME", "--associated", image).split():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{image} is attached to {', '.join(users)}: end the process that uses it first")
        time.sleep(0.1)


def drop_caches() -> None:
    """Write dirty pages back and empty the page cache: the next read is a cold one."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def disk_bytes(*paths: str | os.PathLike[str]) -> int:
    """What compsize(8) calls the disk usage of files or trees, shared extents once, in bytes; 0 while it has none."""
    try:
        lines = run("compsize", "-b", *paths).splitlines()
    except RuntimeError as error:
        if "All empty or still-delalloced" in str(error):
            return 0
        raise
    return next(int(line.split()[2]) for line in lines if line.startswith("TOTAL"))


def filefrag(*paths: str | os.PathLike[str], sync: bool = False) -> list[int]:
    """filefrag(8)'s count of each file's extents.

    Without `sync` those of data that is on the disk; with it dirty pages are written first, which is a
    flush that journald did not choose.
    """
    words = ("filefrag", "-s") if sync else ("filefrag",)
    return [int(found) for found in re.findall(r": (\d+) extents? found", run(*words, *paths))]


def extents(path: str | os.PathLike[str], *, sync: bool = False) -> int:
    """filefrag(8)'s count of one file's extents, as `filefrag`."""
    return filefrag(path, sync=sync)[0]
