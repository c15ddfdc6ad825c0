# SPDX-License-Identifier: LGPL-2.1-or-later
"""One parser under atheris: python -m tests.trust.fuzz_target NAME [words for libFuzzer], started by fuzz.py."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType

import atheris

from tests.trust.parsers import CHECKS

WATCHED = ("journalkeeper", "tests.trust.parsers")


def functions(module: ModuleType) -> Iterator[FunctionType]:
    """Those that the module defines, and those of its classes."""
    for value in list(vars(module).values()):
        if inspect.isclass(value) and value.__module__ == module.__name__:
            yield from (one for one in vars(value).values() if inspect.isfunction(one))
        elif inspect.isfunction(value) and value.__module__ == module.__name__:
            yield value


def main() -> None:
    """Count what is covered in all that was imported of WATCHED, and run for as long as libFuzzer is told to."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in WATCHED or name in WATCHED:
            for function in functions(module):
                atheris.instrument_func(function)
    atheris.Setup([sys.argv[0], *sys.argv[2:]], CHECKS[sys.argv[1]])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
