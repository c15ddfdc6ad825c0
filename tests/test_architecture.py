# SPDX-License-Identifier: LGPL-2.1-or-later
"""The house's arrows and manners, held by reading the source.

The one rule: a check is a function from sources to complaints, so that the same function
is shown this repository, which it must pass, and a bad source, which it must not.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).parent.parent
PACKAGE = "journalkeeper"

GROUND = {
    "model",
    "errors",
    "config",
    "spec",
    "directives",
    "values",
    "compression",
    "reasons",
    "gain",
    "ledger",
    "progress",
    "beat",
    "saving",
    "waiting",
    "escape",
    "backoff",
    "boundary",
}
MIND = {"policy", "status", "metrics", "report"}
KERNEL = {"btrfs", "journald"}
HANDS = {
    "meanwhile",
    "observe",
    "file_row",
    "execute",
    "opening",
    "flushes",
    "record",
    "samples",
    "rows",
    "schema",
    "database",
    "state",
    "conffiles",
    "textfile",
    "measure",
    "mtime_note",
}
WAY = {"bookkeeping", "cycle", "feedback", "publish", "slowest", "watch", "work"}
DOORS = {"cli", "daemon", "desk", "jobs", "log", "notify", "once", "bus", "probe", "lab", "__main__"}

PURE = GROUND | MIND

MAY_IMPORT: dict[str, set[str]] = {
    **dict.fromkeys(GROUND, GROUND),
    **dict.fromkeys(MIND, PURE),
    "btrfs": GROUND | {"btrfs"},
    "journald": GROUND | {"journald", "conffiles"},
    "conffiles": GROUND | {"conffiles"},
    **dict.fromkeys(HANDS - {"conffiles"}, GROUND | KERNEL | HANDS),
    **dict.fromkeys(WAY, PURE | KERNEL | HANDS | WAY),
    **dict.fromkeys(DOORS, PURE | KERNEL | HANDS | WAY | DOORS),
}
"""Which room may import which; the package itself (its version) is open to all."""

PURE_STDLIB = {
    *("__future__", "abc", "array", "base64", "bisect", "collections", "contextlib", "dataclasses", "difflib"),
    *("enum", "errno", "fractions", "functools", "heapq", "html", "itertools", "json", "math", "operator"),
    *("re", "shlex", "statistics", "string", "textwrap", "types", "typing"),
}
"""What the ground and the mind may take from outside: nothing here reaches a file or a clock."""

PURE_EXTRA = {
    "errors": {"os.strerror"},  # an errno's words
    "config": {"pydantic"},
    "spec": {"pydantic", "pydantic_core"},
    "report": {"datetime"},  # writes times for people; CLOCKS catches the rest
}
IMPURE_CALLS = {"open", "print", "input", "eval", "exec", "__import__", "breakpoint"}
CLOCKS = re.compile(r"(^|\.)(datetime|date)\.(now|utcnow|today)$")

ONLY_IN: dict[str, set[str]] = {
    "ctypes": {"btrfs"},
    "fcntl.ioctl": {"btrfs"},
    "btrfsutil": {"btrfs"},
    "struct": {"btrfs", "journald", "watch", "lab", "probe"},
    "pyinotify": {"watch"},
    "sqlite3": {"database"},
    "importlib": {"cli"},
    "dbus_fast": {"bus", "cli", "daemon"},
}
JOURNAL_MAGIC = "LPKS" + "HHRH"

TOP_LEVEL = {"journalkeeper", "units", "configs", "tests", "pyproject.toml", "README.md", "LICENSE"}
MADE_BY_TOOLS = re.compile(r"^(build|dist|__pycache__|.*\.egg-info)$")
WITHOUT_SPDX = re.compile(
    r"(^|/)(LICENSE|README\.md|\.gitignore|packaging/text|packaging/deb/(changelog|copyright)"
    r"|[^/]*\.(json|html|svg|png|txt))$"
)
FUNCTION_LINES, MODULE_LINES = 50, 400
WORKPLACE = re.compile(
    "|".join(
        [
            *("/wo" + r"rk/(main|shared)", "/op" + "t/jk", "far" + "m-", "issu" + r"es (show|resolved|blocked|note)"),
            *(r"(files\.python" + r"hosted|py" + r"pi)\.org/simple", "deb.deb" + "ian.org", "TO" + "DO", "FIX" + "ME"),
        ]
    )
)


class Source(NamedTuple):
    """A file's path relative to the repository, and its text."""

    path: str
    text: str

    @property
    def room(self) -> str:
        """The first name below the package; "" for the package's own __init__ and for other files."""
        parts = Path(self.path).with_suffix("").parts
        return parts[1] if parts[0] == PACKAGE and len(parts) > 1 and parts[1] != "__init__" else ""

    @property
    def python(self) -> bool:
        return self.path.endswith(".py")


def repository() -> list[Source]:
    """Every text file that is ours: hidden directories, and what tools made, are left out."""
    found = []
    for path in sorted(REPOSITORY.rglob("*")):
        parts = path.relative_to(REPOSITORY).parts
        if any((part.startswith(".") and part != ".ci") or MADE_BY_TOOLS.match(part) for part in parts):
            continue
        if path.is_file():
            found.append(Source("/".join(parts), path.read_text(errors="replace")))
    return found


def imports(source: Source) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything that a source imports, relative ones resolved."""
    package = Path(source.path).parent.parts
    for node in ast.walk(ast.parse(source.text)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{prefix}.{alias.name}") for alias in node.names)


def uses(source: Source) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import and every attribute (`os.strerror`)."""
    yield from imports(source)
    for node in ast.walk(ast.parse(source.text)):
        if isinstance(node, ast.Attribute):
            yield node.lineno, ast.unparse(node)


def under(name: str, roots: Iterable[str]) -> bool:
    """Whether a dotted name is one of `roots` or below one."""
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def rooms(sources: list[Source]) -> Iterator[Source]:
    return (source for source in sources if source.python and source.room)


def arrows(sources: list[Source]) -> list[str]:
    """Rooms import only rooms that the table lets them; an unknown room is not in the house."""
    found = []
    for source in rooms(sources):
        if source.room not in MAY_IMPORT:
            found.append(f"{source.path}: the room {source.room} is not in MAY_IMPORT")
            continue
        for line, name in imports(source):
            other = name.split(".")[1] if name.startswith(f"{PACKAGE}.") else source.room
            if other not in MAY_IMPORT[source.room] | {source.room, "__version__"}:
                found.append(f"{source.path}:{line}: {source.room} may not import {other}")
    return found


def purity(sources: list[Source]) -> list[str]:
    """The ground and the mind do no I/O and read no clock."""
    found = []
    for source in rooms(sources):
        if source.room not in PURE:
            continue
        extra = PURE_EXTRA.get(source.room, set())
        for line, name in imports(source):
            inside = name == PACKAGE or name.startswith(f"{PACKAGE}.")
            whole = {word.partition(".")[0] for word in extra}
            if not inside and not under(name, PURE_STDLIB) and not under(name, extra | whole):
                found.append(f"{source.path}:{line}: {name} is outside of the pure rooms' list")
        for line, name in uses(source):
            module = name.partition(".")[0]
            partly = [word for word in extra if word.startswith(f"{module}.")]
            if partly and name not in {*partly, module}:
                found.append(f"{source.path}:{line}: {name}, where only {', '.join(partly)} is allowed")
            if CLOCKS.search(name):
                found.append(f"{source.path}:{line}: {name} reads a clock")
        found += [
            f"{source.path}:{node.lineno}: {node.func.id}() in a pure room"
            for node in ast.walk(ast.parse(source.text))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS
        ]
    return found


def edges(sources: list[Source]) -> list[str]:
    """What knows a format, a kernel call or a library lives in the room that owns it."""
    found = []
    for source in rooms(sources):
        imported = set(imports(source))
        found += [
            f"{source.path}:{line}: {owned} belongs to {', '.join(sorted(owners))}"
            for line, name in uses(source)
            for owned, owners in ONLY_IN.items()
            if under(name, {owned}) and source.room not in owners and ("." in owned or (line, name) in imported)
        ]
        if JOURNAL_MAGIC in source.text and source.room != "journald":
            found.append(f"{source.path}: only journald/ parses journal headers")
    return found


def lab_is_for_doors(sources: list[Source]) -> list[str]:
    """A test bed is no part of the product."""
    return [
        f"{source.path}:{line}: {source.room} uses the lab"
        for source in rooms(sources)
        if source.room not in DOORS
        for line, name in imports(source)
        if under(name, {f"{PACKAGE}.lab"})
    ]


def licensed(sources: list[Source]) -> list[str]:
    """Every file that can bear one has an SPDX line at its top."""
    return [
        f"{source.path}: no SPDX line in its first five"
        for source in sources
        if not WITHOUT_SPDX.search(source.path)
        and "SPDX-License-Identifier: LGPL-2.1-or-later" not in "\n".join(source.text.splitlines()[:5])
    ]


def short(sources: list[Source]) -> list[str]:
    """Functions and modules of the package are short enough to be read at once."""
    found = []
    for source in sources:
        if not source.python:
            continue
        lines = source.text.count("\n")
        if source.path.startswith(f"{PACKAGE}/") and lines > MODULE_LINES:
            found.append(f"{source.path}: {lines} lines; a module has at most {MODULE_LINES}")
        for node in ast.walk(ast.parse(source.text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES:
                    found.append(f"{source.path}:{node.lineno}: {node.name} has {length} lines")
    return found


def homeless(sources: list[Source]) -> list[str]:
    """No file names the place where it was written, and none puts work off."""
    return [
        f"{source.path}:{number}: {hit.group()}"
        for source in sources
        for number, line in enumerate(source.text.splitlines(), 1)
        if (hit := WORKPLACE.search(line))
    ]


def top_level(sources: list[Source]) -> list[str]:
    """The agreed names, dot-files beside them, and nothing else."""
    names = {Path(source.path).parts[0] for source in sources}
    return [f"{name} is not agreed on at the top level" for name in sorted(names - TOP_LEVEL) if name[0] != "."]


Check = Callable[[list[Source]], list[str]]
CHECKS: tuple[Check, ...] = (arrows, purity, edges, lab_is_for_doors, licensed, short, homeless, top_level)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_repository_passes(check: Check) -> None:
    complaints = check(repository())
    assert not complaints, "\n".join(complaints)


BAD: list[tuple[Check, str, str, str]] = [
    (arrows, "policy/rules.py", "from journalkeeper.btrfs import fiemap", "policy may not import btrfs"),
    (arrows, "policy/rules.py", "from ..observe import observe", "policy may not import observe"),
    (arrows, "policy/rules.py", "from .. import execute", "policy may not import execute"),
    (arrows, "model.py", "import journalkeeper.policy", "model may not import policy"),
    (arrows, "btrfs/fiemap.py", "from journalkeeper import journald", "btrfs may not import journald"),
    (arrows, "journald/header.py", "import journalkeeper.btrfs.fiemap", "journald may not import btrfs"),
    (arrows, "observe.py", "def late():\n    from journalkeeper import cycle", "observe may not import cycle"),
    (arrows, "cycle.py", "from journalkeeper.cli import main", "cycle may not import cli"),
    (arrows, "cellar.py", "", "cellar is not in MAY_IMPORT"),
    (purity, "policy/rules.py", "import os", "os is outside"),
    (purity, "policy/rules.py", "from time import monotonic", "time.monotonic is outside"),
    (purity, "config.py", "import subprocess", "subprocess is outside"),
    (purity, "model.py", "import socket", "socket is outside"),
    (purity, "model.py", "import pydantic", "pydantic is outside"),
    (purity, "errors.py", "import os\nos.unlink('x')", "only os.strerror is allowed"),
    (purity, "errors.py", "from os import unlink", "only os.strerror is allowed"),
    (purity, "report.py", "from datetime import datetime\ndatetime.now()", "reads a clock"),
    (purity, "report.py", "import datetime\ndatetime.datetime.now(datetime.UTC)", "reads a clock"),
    (purity, "policy/rules.py", "open('/etc/passwd')", "open() in a pure room"),
    (edges, "execute.py", "import ctypes", "ctypes belongs to btrfs"),
    (edges, "journald/header.py", "import fcntl\nfcntl.ioctl(0, 0)", "fcntl.ioctl belongs to btrfs"),
    (edges, "cycle.py", "from fcntl import ioctl", "fcntl.ioctl belongs to btrfs"),
    (edges, "observe.py", "import struct", "struct belongs to"),
    (edges, "observe.py", f"MAGIC = b'{JOURNAL_MAGIC}'", "only journald/ parses"),
    (lab_is_for_doors, "cycle.py", "from journalkeeper.lab.volume import run", "cycle uses the lab"),
    (licensed, "model.py", "'''No license.'''\n", "no SPDX line"),
    (short, "model.py", "def long():\n" + "    pass\n" * FUNCTION_LINES, "long has 51 lines"),
    (short, "model.py", "x = 1\n" * (MODULE_LINES + 1), "401 lines"),
    (homeless, "model.py", "# see /wo" + "rk/shared", "model.py:1"),
    (homeless, "model.py", "x = 1\n# TO" + "DO: later", "model.py:2"),
]


@pytest.mark.parametrize(("check", "path", "text", "complaint"), BAD)
def test_a_bad_source_is_found(check: Check, path: str, text: str, complaint: str) -> None:
    complaints = check([Source(f"{PACKAGE}/{path}", text)])
    assert any(complaint in line for line in complaints), complaints


GOOD: list[tuple[Check, str, str]] = [
    (arrows, "policy/rules.py", "from journalkeeper.model import Host\nfrom .case import Case"),
    (arrows, "model.py", "from journalkeeper import __version__"),
    (purity, "errors.py", "import os\nos.strerror(2)"),
    (purity, "config.py", "from pydantic import BaseModel"),
    (purity, "policy/case.py", "def asked(request):\n    return request.now"),
    (edges, "record.py", "import fcntl\nfcntl.flock(0, 0)"),
    (lab_is_for_doors, "cli/lab.py", "from journalkeeper.lab import demo"),
    (short, "model.py", "def long():\n" + "    pass\n" * (FUNCTION_LINES - 1)),
    (short, "model.py", "x = 1\n" * MODULE_LINES),
]


@pytest.mark.parametrize(("check", "path", "text"), GOOD)
def test_what_is_allowed_is_not_complained_about(check: Check, path: str, text: str) -> None:
    assert check([Source(f"{PACKAGE}/{path}", text)]) == []


def test_a_stranger_at_the_top_level_is_found() -> None:
    assert top_level([Source("docs/index.md", ""), Source(".ci/run", ""), Source("units/a.service", "")]) == [
        "docs is not agreed on at the top level"
    ]


def test_every_check_has_been_seen_to_fail() -> None:
    assert {check for check, *_ in BAD} | {top_level} == set(CHECKS)


def test_the_checks_saw_the_package() -> None:
    seen = {source.room for source in repository()}
    assert {"model", "errors", "lab", "policy"} <= seen
