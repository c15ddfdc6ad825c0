# SPDX-License-Identifier: LGPL-2.1-or-later
"""Being somebody with fewer rights: for a moment, or in a process that does one thing."""

from __future__ import annotations

import ctypes
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar, cast

NOBODY = 65534
PR_SET_DUMPABLE = 4

T = TypeVar("T")


@contextmanager
def being_nobody() -> Iterator[None]:
    """Be nobody, in no group, for a moment."""
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


def as_nobody(function: Callable[[], T], groups: Sequence[int] = ()) -> T:
    """What `function` returns in a child process that is nobody, in `groups`; what fails there fails here."""

    def become() -> None:
        os.setgroups(groups)
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        # Whoever gives up root may not look into its own /proc/self until it executes a program, or says so.
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)

    return in_child(function, become)


def in_child(function: Callable[[], T], become: Callable[[], object]) -> T:
    """What `function` returns in a child process that has called `become`; what fails there fails here.

    Raises: the OSError that the child raised; AssertionError with any other.
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
        except BaseException as error:  # noqa: BLE001 - all of it is told to the parent
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
