# SPDX-License-Identifier: LGPL-2.1-or-later
"""Work with the rights of the user nobody, in this process or in a child process."""

from __future__ import annotations

import ctypes
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

NOBODY = 65534
PR_SET_DUMPABLE = 4

T = TypeVar("T")


@contextmanager
def being_nobody() -> Iterator[None]:
    """Have the effective user and group of nobody, and no other group, during the block. Only root can call this."""
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def as_nobody(function: Callable[[], T]) -> T:
    """Return what `function` returns in a child process of the user nobody. Raises: see `in_child`."""

    def become() -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        # A process that has given up root cannot read its own /proc/self until it executes a program or asks for it.
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)

    return in_child(function, become)


def in_child(function: Callable[[], T], become: Callable[[], object]) -> T:
    """Return what `function` returns in a child process that has called `become`. The result must be picklable.

    Raises: the OSError that the child raised; AssertionError with the text of any other exception, or if it died.
    """
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        answer: tuple[object, object] = None, "it died"
        try:
            become()
            answer = function(), None
        except OSError as error:
            answer = None, error
        except BaseException as error:  # noqa: BLE001 - the parent raises it
            answer = None, f"{type(error).__name__}: {error}"
        finally:
            with os.fdopen(writable, "wb") as pipe:
                pickle.dump(answer, pipe)
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        result, failure = pickle.load(pipe)  # noqa: S301 - from our own child
    os.waitpid(child, 0)
    if isinstance(failure, OSError):
        raise failure
    assert failure is None, failure
    return cast("T", result)
