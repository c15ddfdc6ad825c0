# SPDX-License-Identifier: LGPL-2.1-or-later
"""A scratch btrfs in a file, mounted through a loop device and gone afterwards.

The one rule: whatever was mounted here is unmounted here, also after an error.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

THROTTLES = ("read_iops_device", "write_iops_device")


def run(*argv: str | os.PathLike[str], timeout_s: float = 300) -> str:
    """Run a command and return what it printed.

    Raises: RuntimeError with the command's own words if it fails.
    """
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        command = " ".join(os.fspath(word) for word in argv)
        raise RuntimeError(f"{command}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout


class ScratchVolume:
    """A btrfs of `size` (as truncate(1) takes it) under a temporary directory.

    As a context manager it unmounts and removes everything on the way out.
    `profile` is mkfs.btrfs's data profile; raid1 makes a second image.
    """

    def __init__(
        self,
        size: str = "1G",
        *,
        profile: str = "single",
        options: str = "",
        image: Path | None = None,
        parent: str | os.PathLike[str] | None = None,
    ) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="journalkeeper-lab-", dir=parent))
        self.mountpoint = self.base / "mnt"
        self.options = options
        count = {"single": 1, "dup": 1, "raid1": 2, "raid10": 4}[profile]
        self.images = [self.base / f"disk{n}.img" for n in range(count)]
        self.devices: list[str] = []
        self._throttled = False
        self._mounted = False
        try:
            self.mountpoint.mkdir()
            if image is None:
                for path in self.images:
                    run("truncate", "-s", size, path)
                run("mkfs.btrfs", "-q", "-d", profile, *self.images)
            else:
                run("cp", "--sparse=always", image, self.images[0])
            for path in self.images:
                self.devices.append(run("losetup", "--find", "--show", path).strip())
            if count > 1:
                run("btrfs", "device", "scan", *self.devices)
            self.mount()
        except BaseException:
            self.close()
            raise

    @property
    def device(self) -> str:
        """The first loop device."""
        return self.devices[0]

    def mount(self) -> None:
        """Mount the volume; a volume whose image was copied keeps its UUID, so mount one at a time."""
        words = ["mount", "-t", "btrfs"]
        if self.options:
            words += ["-o", self.options]
        run(*words, self.device, self.mountpoint)
        self._mounted = True

    def unmount(self) -> None:
        """Unmount, trying for five seconds while somebody still holds a file."""
        if not self._mounted:
            return
        for attempt in range(25):
            try:
                run("umount", self.mountpoint)
                break
            except RuntimeError:
                if attempt == 24:
                    run("umount", "--lazy", self.mountpoint)
                time.sleep(0.2)
        self._mounted = False

    def remount(self) -> None:
        """Unmount and mount again: nothing of it stays in the page cache."""
        self.unmount()
        self.mount()

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
            own = Path("/sys/fs/cgroup") / Path("/proc/self/cgroup").read_text().split("::", 1)[1].strip().lstrip("/")
            if not (own / "io.max").exists():
                raise RuntimeError("no blkio.throttle and no io.max: this kernel or cgroup cannot limit IOPS")
            value = str(iops) if iops else "max"
            (own / "io.max").write_text(f"{number} riops={value} wiops={value}\n")
        self._throttled = iops > 0

    def close(self) -> None:
        """Unmount, detach, remove."""
        if self._throttled:
            self.throttle(0)
        self.unmount()
        for device in self.devices:
            run("losetup", "--detach", device)
        self.devices.clear()
        shutil.rmtree(self.base)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def drop_caches() -> None:
    """Write dirty pages back and empty the page cache: the next read is a cold one."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def disk_bytes(path: str | os.PathLike[str]) -> int:
    """What compsize(8) calls the disk usage of a file or tree, in bytes."""
    for line in run("compsize", "-b", path).splitlines():
        if line.startswith("TOTAL"):
            return int(line.split()[2])
    return 0
