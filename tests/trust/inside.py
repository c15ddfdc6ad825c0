# SPDX-License-Identifier: LGPL-2.1-or-later
"""Our own code where a private journald lives: in its mount namespace, where /run is its own."""

from __future__ import annotations

import ctypes
import os
import time

from journalkeeper.model import Action, Reason, Result, Rotation, Verb
from journalkeeper.observe.observer import Observer
from journalkeeper.probe.bed import PrivateJournald
from tests.btrfs.journals import do

CLONE_NEWNS = 0x00020000
TOP = "/var/log/journal"


def enter(pid: int) -> None:
    """Move this process, which has no threads, to where the journald with `pid` lives.

    Raises: OSError: EINVAL with threads; EPERM not root.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    root = os.open(f"/proc/{pid}/root", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    if libc.setns(mounts, CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "setns")
    os.fchdir(root)
    os.chroot(".")  # setns leaves a chroot
    os.close(root)
    os.close(mounts)


def rotation() -> Action:
    """To rotate the active file of the journald where this process is."""
    seen = Observer().look((TOP,), now_us=time.time_ns() // 1000)
    (file,) = [file for file in seen.files if file.path.endswith("/system.journal")]
    (instance,) = [one for one in seen.instances if file.path.startswith(f"{one.directory}/")]
    target = Rotation(instance.directory, instance.device, instance.inode, instance.namespace, file)
    return Action(file.path, Verb.ROTATE, Reason.CHEAPER, target)


def rotated(journald: PrivateJournald) -> None:
    """Have the engine make `journald` rotate, in a process of its own.

    Raises: RuntimeError if it did not.
    """
    pid = journald.pid  # which only its parent can tell
    child = os.fork()
    if child == 0:
        try:
            enter(pid)
            os._exit(do(rotation()).outcome.result is not Result.DONE)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"the rotation ended with status {status}")
