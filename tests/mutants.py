# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mutants: small changes of the code that a test must notice.

    sudo tests/mutants policy 20 --seed 7     # 20 random changes of journalkeeper/policy, made by mutmut
    sudo tests/mutants --checks exchange      # undo each protective check of tests/protections.txt with this word

One run of the tests under coverage finds which test executes which line. It takes 10 minutes, and its result is kept
in the tests' cache until the package changes. For each mutant only the tests that execute its lines run, in a copy of
the checkout, at most 40 of them and until one fails. A mutant that survives is printed: either a test is missing, or
nobody can see the difference.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import coverage
import libcst
import pytest
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation import mutators
from mutmut.mutation.file_mutation import Mutation, MutationVisitor
from mutmut.mutation.pragma_handling import IgnoredCode

CHECKOUT = Path(__file__).parent.parent
PROTECTIONS = CHECKOUT / "tests/protections.txt"
MEASURED = ("tests/unit", "tests/adapters", "tests/trust", "tests/btrfs")
"""Where the tests are that kill mutants."""

QUICK = MEASURED[:2]
TEST = "JOURNALKEEPER_TEST"
ENDED = (b"ERROR collecting", b"while loading conftest")
"""What pytest says if a mutant's module cannot be imported."""
MOST = 40
TIMEOUT_S = 3600
RCFILE = f"""
[run]
source_pkgs = journalkeeper
context = ${{{TEST}-}}
data_file = DATA
parallel = true
sigterm = true
"""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Tell coverage which test executes the lines, in this process (`-p tests.mutants`) and in those that it starts."""
    os.environ[TEST] = item.nodeid.partition("[")[0]
    if current := coverage.Coverage.current():
        current.switch_context(os.environ[TEST])
    return (yield)


class Mutant(NamedTuple):
    """A changed file: its path in the checkout, its text before and after."""

    path: str
    before: str
    after: str

    def diff(self) -> str:
        """Return the change as diff(1) shows it."""
        texts = self.before.splitlines(), self.after.splitlines()
        return "\n".join(difflib.unified_diff(*texts, self.path, self.path, lineterm="", n=1))

    def lines(self) -> set[int]:
        """Return the lines of the innermost statements, or of their heads, that the change is in."""
        changes = difflib.SequenceMatcher(None, self.before.splitlines(), self.after.splitlines(), autojunk=False)
        first, last = next((a1 + 1, max(a1 + 1, a2)) for kind, a1, a2, _, _ in changes.get_opcodes() if kind != "equal")
        extent: dict[int, int] = {}
        for node in ast.walk(ast.parse(self.before)):  # outer statements come before inner ones
            if isinstance(node, ast.stmt):
                body = getattr(node, "body", None)
                end = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno
                extent |= dict.fromkeys(range(node.lineno, end + 1), node.lineno)
        begins = {extent.get(line, line) for line in range(first, last + 1)}
        return {line for line, begin in extent.items() if begin in begins}


def remove_statement(node: libcst.Expr | libcst.Raise) -> Iterable[libcst.CSTNode]:
    """Replace a call or a `raise` by `pass`, for which mutmut has no operator."""
    if not isinstance(node, libcst.Expr) or isinstance(node.value, libcst.Call | libcst.Await):
        yield libcst.Pass()


def change_number(node: libcst.Integer) -> Iterable[libcst.CSTNode]:
    """Double a number, or add 1 to a small one: nobody notices 100,001 in place of 100,000."""
    value = node.evaluated_value
    yield node.with_changes(value=repr(value * 2 if value > 2 else value + 1))


WITHOUT = (
    mutators.operator_number,
    *(mutators.operator_arg_removal, mutators.operator_assignment, mutators.operator_dict_arguments),  # mypy finds them
    mutators.operator_string,  # mostly words of messages
)
OPERATORS = [(kind, make) for kind, make in mutators.mutation_operators if make not in WITHOUT]
OPERATORS += [(libcst.Integer, change_number), (libcst.Expr, remove_statement), (libcst.Raise, remove_statement)]


def sample(package: str, number: int, rng: random.Random) -> list[Mutant]:
    """Return random mutants of a package, one for each line at most."""
    place = CHECKOUT / "journalkeeper" / package
    found: dict[tuple[str, int], tuple[libcst.Module, Mutation]] = {}
    for file in sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]:
        visitor = MutationVisitor(OPERATORS, IgnoredCode(set(), set(), set()))
        wrapper = MetadataWrapper(libcst.parse_module(file.read_text()))
        module, positions = wrapper.visit(visitor), wrapper.resolve(PositionProvider)
        rng.shuffle(visitor.mutations)
        path = f"{file.relative_to(CHECKOUT)}"
        found |= {(path, positions[one.original_node].start.line): (module, one) for one in visitor.mutations}
    result = []
    for path, line in rng.sample(sorted(found), min(number, len(found))):
        module, one = found[path, line]
        result.append(Mutant(path, module.code, module.deep_replace(one.original_node, one.mutated_node).code))
    return result


def protections(word: str) -> Iterator[tuple[str, Mutant]]:
    """Yield the name and the mutant of each protective check whose row has `word`."""
    for row in PROTECTIONS.read_text().splitlines():
        if word in row and not row.startswith("#"):
            name, path, old, new = row.replace("\\n", "\n").split("\t")
            before = (CHECKOUT / path).read_text()
            if before.count(old) != 1:
                sys.stdout.write(f"{name}: {path} has {before.count(old)} times {old!r}: mend the row\n")
                continue
            yield name, Mutant(path, before, before.replace(old, new))


def measure(place_kept: Path) -> coverage.CoverageData:
    """Return which test executes which line, from `place_kept` if the package has not changed since.

    Every Python process with COVERAGE_PROCESS_START measures itself, by a .pth file of coverage's.
    """
    sources = sorted((CHECKOUT / "journalkeeper").rglob("*.py"))
    data = place_kept / f"lines-{hashlib.sha256(b''.join(path.read_bytes() for path in sources)).hexdigest()[:12]}"
    if not data.exists():
        with tempfile.TemporaryDirectory(dir=place_kept) as place:
            os.chmod(place, 0o1777)  # noqa: S103 - tests run programs as nobody
            (Path(place) / "rc").write_text(RCFILE.replace("DATA", f"{place}/data"))
            surroundings = os.environ | {"PYTHONPATH": f"{CHECKOUT}", "COVERAGE_PROCESS_START": f"{place}/rc"}
            words = ["-n4", "-q", "-p", "tests.mutants", "-p", "no:cacheprovider", "-m", "not long"]
            subprocess.run([sys.executable, "-m", "pytest", *words, *MEASURED], env=surroundings, check=False)
            subprocess.run([sys.executable, "-m", "coverage", "combine", "-q", f"--rcfile={place}/rc"], check=True)
            os.rename(f"{place}/data", data)
    found = coverage.CoverageData(f"{data}")
    found.read()
    return found


def covering(data: coverage.CoverageData, mutant: Mutant) -> list[str]:
    """Return the tests that execute a mutant's lines; those that execute the module, if its lines run at import.

    Other tests of their modules follow, because tests of a module can share a process that the first of them started.
    The tests that are named after the package come first; of these and of the others the quick ones, and of them those
    that execute few other lines. No more than MOST are returned.
    """
    contexts = data.contexts_by_lineno(f"{CHECKOUT / mutant.path}")
    hit = {test for line in mutant.lines() for test in contexts.get(line, ())}
    if "" in hit:
        hit = {test for tests in contexts.values() for test in tests}
    counts, name = count_lines(f"{data.data_filename()}"), f"/test_{Path(mutant.path).parts[1].removesuffix('.py')}"
    modules = {test.partition("::")[0] for test in hit - {""}}
    chosen = [test for test in counts if test.partition("::")[0] in modules]
    chosen.sort(key=lambda test: (name not in test, test not in hit, not test.startswith(QUICK), counts[test], test))
    return chosen[:MOST]


@cache
def count_lines(filename: str) -> Counter[str]:
    """Return how many lines each test executes."""
    data = coverage.CoverageData(filename)
    data.read()
    files = (data.contexts_by_lineno(file) for file in data.measured_files())
    return Counter(test for contexts in files for tests in contexts.values() for test in tests)


def survives(mutant: Mutant, tests: list[str], copy: Path) -> bool:
    """Run tests on a mutant in the copy of the checkout; one that hangs them is killed, too."""
    if not tests:
        return True
    (copy / mutant.path).write_text(mutant.after)
    environment = os.environ | {"PYTHONPATH": f"{copy}", "PYTHONDONTWRITEBYTECODE": "1"}
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout=120", *tests]
    try:
        done = subprocess.run(words, cwd=copy, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    finally:
        (copy / mutant.path).write_text(mutant.before)
    said = done.stdout + done.stderr
    if done.returncode > 2 and not any(words in said for words in ENDED):
        raise SystemExit(said.decode())
    return done.returncode == 0


def main() -> int:
    """Try the mutants; 0 if none survives."""
    parser = argparse.ArgumentParser(prog="tests/mutants")
    parser.add_argument("package", help="a package of journalkeeper's, or a word of the protective checks")
    parser.add_argument("number", nargs="?", type=int, default=20)
    parser.add_argument("--checks", action="store_true", help=f"undo the protective checks of {PROTECTIONS.name}")
    parser.add_argument("--seed", type=int, default=1)
    words = parser.parse_args()
    if words.checks:
        chosen = list(protections(words.package))
    else:
        picked = sample(words.package, words.number, random.Random(words.seed))  # noqa: S311 - no secret
        chosen = [(f"{number}", mutant) for number, mutant in enumerate(picked, 1)]
    data = measure(Path(os.environ["JOURNALKEEPER_CACHE"]))
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="journalkeeper-mutants-") as place:
        os.chmod(place, 0o755)  # noqa: S103 - tests run programs as nobody
        copy = Path(place) / "checkout"
        shutil.copytree(CHECKOUT, copy, ignore=shutil.ignore_patterns(".git", "__pycache__", ".*_cache"), symlinks=True)
        for name, mutant in chosen:
            tests = covering(data, mutant)
            survived = survives(mutant, tests, copy)
            survivors += survived
            sys.stdout.write(f"{name}: {'SURVIVED' if survived else 'killed'}, {len(tests)} tests\n")
            sys.stdout.write(f"{mutant.diff()}\n" if survived else "")
            sys.stdout.flush()
    sys.stdout.write(f"{len(chosen) - survivors} of {len(chosen)} mutants were killed\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
