# SPDX-License-Identifier: LGPL-2.1-or-later
"""The order of imports and other rules of this repository, checked by reading the source.

A check is a function from sources to complaints. It finds none in this repository.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import TESTS_OF

REPOSITORY = Path(__file__).parent.parent
PACKAGE = "journalkeeper"

ORDER = (
    "model",
    "config",
    "policy",
    "health",
    "btrfs",
    "journald",
    "whole_file",
    "observe",
    "history",
    "execute",
    "metrics",
    "engine",
    "keeper",
    "report",
    "probe",
    "service",
    "bus",
    "cli",
    "__main__",
)
"""Each package may import itself and those before it, and every package the version."""

PURE = (
    *("model/", "config/", "policy/", "health/", "report/", "metrics/prometheus.py"),
    *("service/snapshot.py", "bus/contract.py"),
)
"""The packages and modules that do no I/O and read no clock ..."""

READS_FILES = "config/files.py"
"""... but for the module that reads the configuration's files."""

PURE_STDLIB = {
    *("__future__", "abc", "array", "base64", "bisect", "collections", "contextlib", "dataclasses", "difflib"),
    *("enum", "errno", "fractions", "functools", "heapq", "html", "itertools", "json", "math", "operator"),
    *("posixpath", "re", "shlex", "statistics", "string", "textwrap", "traceback", "types", "typing"),
}
"""The modules of the standard library that pure modules may import."""

PURE_EXTRA = {
    "model/errors.py": {"os"},  # the words of an errno
    "model/": {"pydantic"},
    "config/": {"pydantic", "pydantic_core"},
    "config/weekly.py": {"datetime"},  # weekly spans are local times
    "report/": {"datetime", "jinja2", "markupsafe"},  # writes times for people; CLOCKS catches the rest
}
IMPURE_CALLS = {"open", "print", "input", "eval", "exec", "__import__", "breakpoint"}
CLOCKS = re.compile(r"(^|\.)(datetime|date)\.(now|utcnow|today)$")

ONLY_IN: dict[str, set[str]] = {
    "ctypes": {"btrfs"},
    "fcntl.ioctl": {"btrfs"},
    "btrfsutil": {"btrfs"},
    "struct": {"btrfs", "journald", "service", "probe"},
    "pyinotify": {"service"},
    "sqlite3": {"history"},
    "importlib": {"cli"},
    "jeepney": {"bus"},
    "journalkeeper.probe": {"probe", "cli"},  # the service has no test bed
}
"""The packages that may use a format, a kernel call or a library ..."""

WORDS_ONLY_IN = {"LPKS" + "HHRH": "journald/", "call_soon_threadsafe": "service/daemon.py"}
"""... and the only place of a word: the journal's magic, and the call that hands over to an event loop."""

TOP_LEVEL = {"journalkeeper", "units", "configs", "tests", "pyproject.toml", "README.md", "LICENSE"}
MADE_BY_TOOLS = re.compile(r"^(build|dist|__pycache__|.*\.egg-info)$")
WITHOUT_SPDX = re.compile(
    r"(^|/)(LICENSE|README\.md|\.gitignore|packaging/text|packaging/deb/(changelog|copyright)"
    r"|[^/]*\.(json|html|svg|png|txt))$"
)
FUNCTION_LINES, MODULE_LINES = 50, 400
PARTICIPLE = re.compile(
    r"_*([a-z]+(?<!e)ed|shown|said|told|kept|made|seen|known|given|taken|begun|done|written|found|held|left|met|sent)(_|$)"
)
NOT_PARTICIPLES = {"bed", "embed"}

OBSCURE = re.compile(
    r"^(What|How|Who|Of|So|That)\b|\b(nobody|somebody|whoever|shall|ought|is to be|are to be"
    r"|(comes?|came) to nothing|takes? leave|by which)\b"
)
"""An opening by a question word, and words that hide the subject: plain English does without them."""

REFERENCE = re.compile(
    r"(?<![\w/.*-])((?:(?:journalkeeper|tests)/[\w/.*-]+\.py|configs/[\w/.*-]*[\w*])(?![\w{$<]|/[{$<]))"
)
MADE_UP = {
    "configs/pins/NAME.txt",  # a placeholder
    "configs/pins/pinnedthing.txt",  # made by the tests that name these
    "journalkeeper/journalkeeper/__init__.py",
}


class Source(NamedTuple):
    """A file's path relative to the repository, and its text."""

    path: str
    text: str

    @property
    def inside(self) -> str:
        """The path below the package; "" for the package's own __init__ and for other files."""
        inside = self.path.removeprefix(f"{PACKAGE}/")
        return "" if inside in {self.path, "__init__.py"} else inside

    @property
    def package(self) -> str:
        """The first name below the package, a package's or a module's; "" as `inside`."""
        return self.inside.partition("/")[0].removesuffix(".py")

    @property
    def python(self) -> bool:
        return self.path.endswith(".py")


@cache
def parse(text: str) -> ast.Module:
    """Parse a module once for all checks. Raises: SyntaxError."""
    return ast.parse(text)


@cache
def repository() -> list[Source]:
    """Return every file of the repository, without hidden directories and those that tools made."""
    found = []
    for path in sorted(REPOSITORY.rglob("*")):
        parts = path.relative_to(REPOSITORY).parts
        if any((part.startswith(".") and part != ".ci") or MADE_BY_TOOLS.match(part) for part in parts):
            continue
        if path.is_file():
            found.append(Source("/".join(parts), path.read_text(errors="replace")))
    return found


def imports(source: Source) -> Iterator[tuple[int, str]]:
    """Yield the line and the full dotted name of each import, relative ones resolved."""
    package = Path(source.path).parent.parts
    for node in ast.walk(parse(source.text)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{prefix}.{alias.name}") for alias in node.names)


def uses(source: Source) -> Iterator[tuple[int, str]]:
    """Yield the line and the dotted name of each import and each attribute (`fcntl.ioctl`)."""
    yield from imports(source)
    for node in ast.walk(parse(source.text)):
        if isinstance(node, ast.Attribute):
            yield node.lineno, ast.unparse(node)


def under(name: str, roots: Iterable[str]) -> bool:
    """Return whether a dotted name is one of `roots` or below one."""
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def modules(sources: list[Source]) -> Iterator[Source]:
    return (source for source in sources if source.python and source.inside)


def order(sources: list[Source]) -> list[str]:
    """Complain of an import of a package below, and of a package that ORDER lacks."""
    found = []
    for source in modules(sources):
        if source.package not in ORDER:
            found.append(f"{source.path}: {source.package} is not in ORDER")
            continue
        above = {*ORDER[: ORDER.index(source.package) + 1], "__version__"}
        for line, name in imports(source):
            other = name.split(".")[1] if name.startswith(f"{PACKAGE}.") else source.package
            if other not in above:
                found.append(f"{source.path}:{line}: {source.package} may not import {other}")
    return found


def is_pure(source: Source) -> bool:
    return source.inside.startswith(PURE) and source.inside != READS_FILES


def purity(sources: list[Source]) -> list[str]:
    """Complain of I/O and clocks in pure modules."""
    found = []
    for source in filter(is_pure, modules(sources)):
        extra = {word for place, words in PURE_EXTRA.items() if source.inside.startswith(place) for word in words}
        for line, name in imports(source):
            inside = name == PACKAGE or name.startswith(f"{PACKAGE}.")
            if not inside and not under(name, PURE_STDLIB | extra):
                found.append(f"{source.path}:{line}: {name} is outside of the pure modules' list")
        for line, name in uses(source):
            if CLOCKS.search(name):
                found.append(f"{source.path}:{line}: {name} reads a clock")
        found += [
            f"{source.path}:{node.lineno}: {node.func.id}() in a pure module"
            for node in ast.walk(parse(source.text))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS
        ]
    return found


def edges(sources: list[Source]) -> list[str]:
    """Complain of a format, a kernel call or a library outside of the package that owns it."""
    found = []
    for source in modules(sources):
        imported = set(imports(source))
        found += [
            f"{source.path}:{line}: {owned} belongs to {', '.join(sorted(owners))}"
            for line, name in uses(source)
            for owned, owners in ONLY_IN.items()
            if under(name, {owned}) and source.package not in owners and ("." in owned or (line, name) in imported)
        ]
        found += [
            f"{source.path}: {word} belongs to {place}"
            for word, place in WORDS_ONLY_IN.items()
            if word in source.text and not source.inside.startswith(place)
        ]
    return found


def names(sources: list[Source]) -> list[str]:
    """Complain of a function that is named with a participle. A property and a rule of health may be."""
    return [
        f"{source.path}:{node.lineno}: {node.name} is a participle; name what the function does"
        for source in modules(sources)
        if not source.inside.startswith("health/")
        for node in ast.walk(parse(source.text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and PARTICIPLE.match(node.name)
        and node.name.strip("_").partition("_")[0] not in NOT_PARTICIPLES
        and not any("property" in ast.unparse(one) for one in node.decorator_list)
    ]


def rules(sources: list[Source]) -> list[str]:
    """Complain of a test that is named by a question instead of a rule."""
    asking = re.compile(r"(?m)^(?:async )?def (test_(?:what|who|how|of|that)_\w+)")
    return [f"{source.path}: {name} states no rule" for source in sources for name in asking.findall(source.text)]


def classes(sources: list[Source]) -> list[str]:
    """Complain of two classes of one name in the package."""
    found: dict[str, list[str]] = {}
    for source in modules(sources):
        for node in ast.walk(parse(source.text)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(f"{source.path}:{node.lineno}")
    return [f"{name} is defined in {', '.join(places)}" for name, places in found.items() if len(places) > 1]


def docstrings(sources: list[Source]) -> list[str]:
    """Complain of docstrings that are no plain English."""
    return [
        f"{source.path}:{getattr(node, 'lineno', 1)}: the docstring has {hit.group()!r}"
        for source in modules(sources)
        for node in ast.walk(parse(source.text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module)
        and (hit := OBSCURE.search(ast.get_docstring(node) or ""))
    ]


def licensed(sources: list[Source]) -> list[str]:
    """Complain of a file that has no SPDX line at its top and could have one."""
    return [
        f"{source.path}: no SPDX line in its first five"
        for source in sources
        if not WITHOUT_SPDX.search(source.path)
        and "SPDX-License-Identifier: LGPL-2.1-or-later" not in "\n".join(source.text.splitlines()[:5])
    ]


def short(sources: list[Source]) -> list[str]:
    """Complain of long functions, and of long modules of the package."""
    found = []
    for source in sources:
        if not source.python:
            continue
        lines = source.text.count("\n")
        if source.path.startswith(f"{PACKAGE}/") and lines > MODULE_LINES:
            found.append(f"{source.path}: {lines} lines; a module has at most {MODULE_LINES}")
        for node in ast.walk(parse(source.text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES:
                    found.append(f"{source.path}:{node.lineno}: {node.name} has {length} lines")
    return found


def references(sources: list[Source]) -> list[str]:
    """Complain of a file of this repository that a text names and that does not exist."""
    return [
        f"{source.path}:{number}: there is no {name}"
        for source in sources
        for number, line in enumerate(source.text.splitlines(), 1)
        for name in REFERENCE.findall(line)
        if name not in MADE_UP and not any(REPOSITORY.glob(name))
    ]


def top_level(sources: list[Source]) -> list[str]:
    """Complain of other names than the agreed ones and dot-files."""
    names = {Path(source.path).parts[0] for source in sources}
    return [f"{name} is not agreed on at the top level" for name in sorted(names - TOP_LEVEL) if name[0] != "."]


def mapped(sources: list[Source]) -> list[str]:
    """Complain of a package without tests in TESTS_OF, and of a test file that it has not exactly once."""
    files = [Path(source.path).stem[5:] for source in sources if re.match(r"tests/(.*/)?test_\w+\.py$", source.path)]
    found = [f"TESTS_OF has no {package}" for package in ORDER if package not in TESTS_OF and package[0] != "_"]
    for name in sorted(set(files)):
        owners = [owner for owner, words in TESTS_OF.items() if any(fnmatch(name, word) for word in words.split())]
        found += [f"test_{name}.py belongs to {owners} in TESTS_OF"] if len(owners) != 1 else []
    return found


Check = Callable[[list[Source]], list[str]]
CHECKS: tuple[Check, ...] = (
    *(order, purity, edges, names, rules, classes, docstrings, licensed, short, references, top_level, mapped),
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_repository_passes(check: Check) -> None:
    complaints = check(repository())
    assert not complaints, "\n".join(complaints)


def test_each_protective_check_is_one_place_in_the_code() -> None:
    """tests/mutants undoes it there."""
    rows = (REPOSITORY / "tests/protections.txt").read_text().splitlines()[1:]
    places = [row.replace("\\n", "\n").split("\t")[:3] for row in rows]
    assert [name for name, path, code in places if (REPOSITORY / path).read_text().count(code) != 1] == []
