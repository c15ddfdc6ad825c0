# SPDX-License-Identifier: LGPL-2.1-or-later
"""Full volumes, bad blocks, kills and power cuts while work is done on a file."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from journalkeeper.btrfs import kernel
from journalkeeper.model import MIB
from journalkeeper.observe.observer import Observer
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests.journal_files import PAGE
from tests.patience import eventually
from tests.volumes import drop_caches

CALLS = (
    *("open", "link", "rename", "unlink", "fsync", "fchown", "fchmod", "setxattr", "removexattr", "utime", "pwrite"),
    *("mkdir", "rmdir", "symlink", "chown", "copy_file_range"),
)
KERNEL_CALLS = ("ioctl", "renameat2", "sync_file_range")


def before_each_call(monkeypatch: pytest.MonkeyPatch, event: Callable[[], None]) -> None:
    """Have `event` happen before each call that changes something."""

    def wrap(module: Any, name: str) -> None:
        real = getattr(module, name)

        def wrapped(*args: Any, **words: Any) -> Any:
            event()
            return real(*args, **words)

        monkeypatch.setattr(module, name, wrapped)
        if module is os and real in os.supports_follow_symlinks:  # shutil looks it up there
            monkeypatch.setattr(os, "supports_follow_symlinks", {*os.supports_follow_symlinks, wrapped})

    for name in CALLS:
        wrap(os, name)
    for name in KERNEL_CALLS:
        wrap(kernel, name)


def killed_before(number: int, work: Callable[[], object]) -> bool:
    """Do `work` in a child that kills itself before its call of this number; False if it came to the end."""
    child = os.fork()
    if child == 0:
        count, ended = 0, 1

        def event() -> None:
            nonlocal count
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1

        try:
            with pytest.MonkeyPatch.context() as patch:
                before_each_call(patch, event)
                work()
            ended = 0
        finally:
            os._exit(ended)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or status == 0, "the work raised an error"
    return os.WIFSIGNALED(status)


@contextmanager
def images_before_each_call(
    volume: ScratchVolume, directory: Path, *, sync: bool = False, most: int = 1000
) -> Iterator[list[Path]]:
    """The volume's image as it is before each call that changes something, and at the end; each different one once.

    With `sync` the volume is committed before: what is in memory is not lost.
    """
    images: dict[str, Path] = {}
    cutting, written = False, -1

    def cut() -> None:
        nonlocal cutting, written
        if cutting or len(images) >= most:  # what happens for the copy itself is no event
            return
        cutting = True
        if sync:
            os.sync()
        if written == (written := _count_writes(volume)):
            cutting = False
            return
        image = directory / f"{len(images)}.img"
        run("cp", "--sparse=always", volume.images[0], image)
        with open(image, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if images.setdefault(digest, image) != image:
            image.unlink()
        cutting = False

    found: list[Path] = []
    with pytest.MonkeyPatch.context() as patch:
        before_each_call(patch, cut)
        yield found
    cut()
    found += images.values()


def _count_writes(volume: ScratchVolume) -> int:
    return int(Path("/sys/block", Path(volume.device).name, "stat").read_text().split()[4])


def leftovers_beside(path: Path) -> list[str]:
    """The paths of our temporary files, as a run that is given `path` finds them."""
    return list(Observer().look_at([str(path)], now_us=time.time_ns() // 1000).leftovers)


def let_go(volume: ScratchVolume) -> None:
    """Unmount a volume for good: another mount namespace that was just made may have it mounted still."""
    volume.unmount()

    def free() -> bool:
        try:
            os.close(os.open(volume.device, os.O_RDONLY | os.O_EXCL))
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
        return True

    assert eventually(free)


def cut_power(volume: ScratchVolume) -> None:
    """Mount the volume as a power cut now would leave it: what is only in memory is lost."""
    image = volume.images[0]
    copy = image.with_suffix(".cut")
    run("cp", "--sparse=always", image, copy)
    let_go(volume)
    shutil.copyfile(copy, image)
    copy.unlink()
    volume.mount()


def fill(path: Path) -> None:
    """Write to `path` until the volume has no room left."""
    with path.open("wb", buffering=0) as file:
        for size in (MIB, PAGE):
            try:
                while True:
                    file.write(os.urandom(size))
                    os.fsync(file.fileno())
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def spoil(volume: ScratchVolume, mark: bytes) -> None:
    """Change a byte of this block wherever it is on the volume, while nobody looks.

    UML kills a program with 256 MiB in memory: each page can be a mapping, and vm.max_map_count of them are allowed.
    """
    let_go(volume)
    found = False
    with open(volume.images[0], "r+b", buffering=0) as file:
        while piece := file.read(MIB):
            if mark in piece:
                found = True
                file.seek(-len(piece), os.SEEK_CUR)
                file.write(piece.replace(mark, bytes([mark[0] ^ 1]) + mark[1:]))
    assert found
    volume.mount()
    drop_caches()
