# SPDX-License-Identifier: LGPL-2.1-or-later
"""A scratch btrfs in a file that is mounted through a loop device.

Each mount made here is unmounted here, also after an error. The kernel detaches the loop devices (autoclear) when our
last descriptor and the mount are gone. So even SIGKILL leaves nothing behind if the program has its own mount
namespace.
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
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Self

PREFIX = "journalkeeper-lab-"
"""The prefix of the directory of every scratch volume, by which leftovers can be found."""

TOOLS = {
    "mkfs.btrfs": "btrfs-progs",
    "losetup": "util-linux or mount",
    "mount": "mount",
    "chattr": "e2fsprogs",
    "filefrag": "e2fsprogs",
    "setpriv": "util-linux",
    "unshare": "util-linux",
}
ISOLATED = "JOURNALKEEPER_LAB_ISOLATED"
"""The environment variable with the id of the process that `isolate` moved to its own mount namespace."""

SECTOR_BYTES = 512
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SHARED_CHROOT = "this chroot shares its mounts: `mount --bind ROOT ROOT` before entering it"
THROTTLES = ("read_iops_device", "write_iops_device")


def run(*argv: str | os.PathLike[str], timeout_s: float = 300) -> str:
    """Run a command and return its standard output.

    Raises: RuntimeError with the command's error message if it fails.
    """
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        command = " ".join(os.fspath(word) for word in argv)
        raise RuntimeError(f"{command}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def own_mounts() -> tuple[str, ...] | None:
    """Return the command prefix that runs a command in its own mount namespace.

    Return None in a chroot with shared mounts, out of which new mounts would spread. There "/" is not a mount point, so
    its propagation cannot be changed. Source: mount_namespaces(7), unshare(1).
    """
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    if any(fields[4] == "/" for fields in mounts):
        return ("unshare", "--mount", "--propagation", "private")
    if any(word.startswith("shared:") for fields in mounts for word in fields):
        return None
    return ("unshare", "--mount", "--propagation", "unchanged")


def isolate() -> None:
    """Replace this process by a new run of the same command in its own mount namespace. Return in that new run.

    Otherwise, a namespace that another process makes meanwhile would copy our mounts and keep them mounted. After
    SIGKILL, the mounts vanish with the last process.

    Raises: RuntimeError in a chroot that shares its mounts, which `missing` reports beforehand.
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
    """Make every signal that would end the command raise KeyboardInterrupt once, so that all is unmounted and removed.

    The exception has the signal's number; later signals are ignored.
    """

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for other in INTERRUPTS:
            signal.signal(other, signal.SIG_IGN)
        # no message here: a handler may run in the middle of a write, and files are not re-entrant
        raise KeyboardInterrupt(number)

    for number in INTERRUPTS:
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup(1) has it
            signal.signal(number, interrupt)


def missing() -> str | None:
    """Return one line that states why no scratch volume can be made here; None if it can."""
    if os.geteuid() != 0:
        return "loop devices and mounts need root: run with sudo"
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            return f"{tool} is not installed (package {package})"
    alone = own_mounts()
    if alone is None:
        return SHARED_CHROOT
    try:
        run(*alone, "true")
        run("losetup", "--find")
        if "\tbtrfs\n" not in Path("/proc/filesystems").read_text():
            run("modprobe", "btrfs")
    except (RuntimeError, OSError) as error:
        return str(error)
    return None


class ScratchVolume:
    """A btrfs of `size` (as in truncate(1)) in a temporary directory.

    As a context manager, it unmounts and removes everything at the end. `images` are files of the caller that contain
    the filesystem; they are kept.
    """

    def __init__(
        self,
        size: str = "1G",
        *,
        options: str = "",
        parent: str | os.PathLike[str] | None = None,
        images: Sequence[Path] = (),
    ) -> None:
        self.base = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self.mountpoint = self.base / "mnt"
        self.options = options
        self.images = list(images) or [self.base / "disk.img"]
        self.devices: list[str] = []
        self._held: list[int] = []
        self._throttled = False
        try:
            self.mountpoint.mkdir()
            if not images:
                if run("stat", "--file-system", "--format=%T", self.base).strip() == "btrfs":
                    run("chattr", "+C", self.base)  # the image inherits it: its own extents are not what is measured
                run("truncate", "-s", size, *self.images)
                run("mkfs.btrfs", "-q", "-d", "single", *self.images)
            for path in self.images:
                _await_detachment(path)
                self._attach(path)
            if len(self.devices) > 1:
                run("btrfs", "device", "scan", *self.devices)
            self._counted_before = self._read_counter()
            self.mount()
        except BaseException:
            self.close()
            raise

    def _attach(self, image: Path) -> None:
        """Attach `image` to a loop device, and append its path to `devices`. The kernel detaches it after its last use.

        We keep the device open. Detaching a device in use marks it LO_FLAGS_AUTOCLEAR (Source: losetup(8), --detach).
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
        """Unmount; retry for five seconds while a process holds a file open, then unmount lazily."""
        if not os.path.ismount(self.mountpoint):  # true also for the mount of an interrupted command
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
        """Unmount and mount again, so that neither the volume nor its images are in the page cache.

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
        """Wait until the volume is not mounted in any mount namespace.

        An exclusive open of its device fails while it is mounted (open(2), O_EXCL without O_CREAT).

        Raises: RuntimeError if the volume is still mounted after `timeout_s`.
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
                    f"{self.device} is still mounted in another mount namespace, perhaps one made by `unshare --mount` "
                    "meanwhile: run this command under `unshare --mount`, so that no process copies its mounts"
                )
            time.sleep(0.01)

    def throttle(self, iops: int) -> None:
        """Limit the device to `iops` reads and `iops` writes per second; 0 removes the limit.

        Raises: RuntimeError if the kernel has neither blkio nor io.max.
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

    def count_written_bytes(self) -> int:
        """Return the number of bytes written to the first device since the volume was first mounted."""
        return self._read_counter() - self._counted_before

    def _read_counter(self) -> int:
        """Return the device's counter of written bytes, which includes those of earlier users of the device.

        Source: Documentation/block/stat.rst.
        """
        return int(Path("/sys/class/block", Path(self.device).name, "stat").read_text().split()[6]) * SECTOR_BYTES

    def close(self) -> None:
        """Unmount, detach and remove; each step runs even if the one before failed."""
        if not self.base.exists():
            return
        with ExitStack() as steps:
            steps.callback(shutil.rmtree, self.base)
            steps.callback(self._release)
            steps.callback(self.unmount)
            if self._throttled:
                steps.callback(self.throttle, 0)

    def _release(self) -> None:
        """Close the loop devices; the kernel clears each at its last close."""
        while self._held:
            os.close(self._held.pop())
        self.devices.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _await_detachment(image: Path, timeout_s: float = 10) -> None:
    """Wait until no loop device uses `image`, because two mounts of one image destroy its filesystem.

    Raises: RuntimeError if a loop device still uses it after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while users := run("losetup", "--noheadings", "--output=NAME", "--associated", image).split():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{image} is attached to {', '.join(users)}: end the process that uses it first")
        time.sleep(0.1)


def filefrag(*paths: str | os.PathLike[str], sync: bool = False) -> list[int]:
    """Return the number of extents of each file by filefrag(8).

    Only data on the disk is counted. With `sync`, dirty pages are written first, which adds a flush that journald did
    not choose.
    """
    words = ("filefrag", "-s") if sync else ("filefrag",)
    return [int(found) for found in re.findall(r": (\d+) extents? found", run(*words, *paths))]


def extents(path: str | os.PathLike[str], *, sync: bool = False) -> int:
    """Return the number of extents of one file, as `filefrag`."""
    return filefrag(path, sync=sync)[0]
