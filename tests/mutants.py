# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mutants: protective checks of the code are undone, which a test must notice.

    sudo tests/mutants exchange      # undo each protective check of tests/protections.txt with this word

For each mutant the tests of its package run until one fails, in a copy of the checkout, and then all that need no
guest. A mutant that survives is printed: a test is missing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests import TESTS_OF

CHECKOUT = Path(__file__).parent.parent
PROTECTIONS = CHECKOUT / "tests/protections.txt"
ALL = ["tests/unit", "tests/adapters", "tests/trust", "tests/btrfs"]
ENDED = (b"ERROR collecting", b"while loading conftest")
"""What pytest says if a mutant's module cannot be imported."""
TIMEOUT_S = 3600


class Mutant(NamedTuple):
    """A protective check, and the text of its file in the checkout before and after it is undone."""

    name: str
    path: str
    before: str
    after: str


def mutants(word: str) -> Iterator[Mutant]:
    """Yield the mutant of each protective check whose row has `word`."""
    for row in PROTECTIONS.read_text().splitlines():
        if word in row and not row.startswith("#"):
            name, path, old, new = row.replace("\\n", "\n").split("\t")
            before = (CHECKOUT / path).read_text()
            yield Mutant(name, path, before, before.replace(old, new))


def tests_of_package(mutant: Mutant) -> list[str]:
    """Return the test files of the mutant's package, those of tests/unit first."""
    package = Path(mutant.path).parts[1].removesuffix(".py")
    files = {file for pattern in TESTS_OF[package].split() for file in CHECKOUT.glob(f"tests/*/test_{pattern}.py")}
    return sorted((f"{file.relative_to(CHECKOUT)}" for file in files), reverse=True)


def fails(tests: list[str], copy: Path) -> bool:
    """Return whether one of the tests fails in the copy of the checkout, or hangs."""
    environment = os.environ | {"PYTHONPATH": f"{copy}", "PYTHONDONTWRITEBYTECODE": "1"}
    words = ["-n4", "-x", "-q", "-p", "no:cacheprovider", "--timeout=120", "-m", "not long and not guest"]
    command = [sys.executable, "-m", "pytest", *words, *tests]
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return True
    said = done.stdout + done.stderr
    if done.returncode > 2 and not any(words in said for words in ENDED):
        raise SystemExit(said.decode())
    return done.returncode != 0


def main() -> int:
    """Try the mutants; 0 if none survives."""
    parser = argparse.ArgumentParser(prog="tests/mutants")
    parser.add_argument("word", help=f"in the row of a protective check in {PROTECTIONS.name}")
    chosen = list(mutants(parser.parse_args().word))
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="journalkeeper-mutants-") as place:
        os.chmod(place, 0o755)  # noqa: S103 - tests run programs as nobody
        copy = Path(place) / "checkout"
        shutil.copytree(CHECKOUT, copy, ignore=shutil.ignore_patterns(".git", "__pycache__", ".*_cache"), symlinks=True)
        for mutant in chosen:
            (copy / mutant.path).write_text(mutant.after)
            killed = fails(tests_of_package(mutant), copy) or fails(ALL, copy)
            (copy / mutant.path).write_text(mutant.before)
            survivors += not killed
            sys.stdout.write(f"{mutant.name}: {'killed' if killed else 'SURVIVED'}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(chosen) - survivors} of {len(chosen)} mutants were killed\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
