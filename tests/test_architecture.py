# SPDX-License-Identifier: LGPL-2.1-or-later
"""The order of imports and other rules of this repository, checked by reading the source.

A check is a function from sources to complaints: the same function is shown this
repository, which it must pass, and a bad source, which it must not.
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

ORDER = (
    "model",
    "config",
    "policy",
    "health",
    "wire",
    "btrfs",
    "journald",
    "observe",
    "history",
    "execute",
    "metrics",
    "engine",
    "report",
    "probe",
    "service",
    "bus",
    "cli",
    "__main__",
)
"""Each package imports itself and those before it; the package's version is open to all."""

PURE = (
    *("model/", "config/", "policy/", "health/", "wire/", "report/", "metrics/prometheus.py", "metrics/status.py"),
    *(
        "service/snapshot.py",
        "service/backoff.py",
        "bus/options.py",
        "bus/contract.py",
    ),
)
"""What does no I/O and reads no clock: packages and modules ..."""

READS_FILES = "config/files.py"
"""... but for the module that reads the configuration's files."""

PURE_STDLIB = {
    *("__future__", "abc", "array", "base64", "bisect", "collections", "contextlib", "dataclasses", "difflib"),
    *("enum", "errno", "fractions", "functools", "heapq", "html", "itertools", "json", "math", "operator"),
    *("posixpath", "re", "shlex", "statistics", "string", "textwrap", "types", "typing"),
}
"""What pure modules may import from outside: nothing here reaches a file or a clock."""

PURE_EXTRA = {
    "model/errors.py": {"os.strerror"},  # an errno's words
    "model/": {"pydantic"},
    "config/": {"pydantic", "pydantic_core"},
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
    "dbus_fast": {"bus"},
}
MAILBOX = "service/daemon.py"
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


def modules(sources: list[Source]) -> Iterator[Source]:
    return (source for source in sources if source.python and source.inside)


def order(sources: list[Source]) -> list[str]:
    """Packages import only packages above them; an unknown one has no place."""
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


def cycles(sources: list[Source]) -> list[str]:
    """No module needs itself, by whatever way."""
    named = {source.path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): source for source in sources}
    needs = {
        name: {
            needed
            for _, imported in imports(source)
            if (needed := imported if imported in named else imported.rpartition(".")[0]) in named and needed != name
        }
        for name, source in named.items()
        if source.python and source.inside
    }
    found = []
    while needs:
        ready = {name for name, needed in needs.items() if not needed & needs.keys()}
        if not ready:
            found.append(f"modules that need each other, and what needs those: {', '.join(sorted(needs))}")
            break
        needs = {name: needed for name, needed in needs.items() if name not in ready}
    return found


def is_pure(source: Source) -> bool:
    return source.inside.startswith(PURE) and source.inside != READS_FILES


def purity(sources: list[Source]) -> list[str]:
    """Pure modules do no I/O and read no clock."""
    found = []
    for source in filter(is_pure, modules(sources)):
        extra = {word for place, words in PURE_EXTRA.items() if source.inside.startswith(place) for word in words}
        for line, name in imports(source):
            inside = name == PACKAGE or name.startswith(f"{PACKAGE}.")
            whole = {word.partition(".")[0] for word in extra}
            if not inside and not under(name, PURE_STDLIB) and not under(name, extra | whole):
                found.append(f"{source.path}:{line}: {name} is outside of the pure modules' list")
        for line, name in uses(source):
            module = name.partition(".")[0]
            partly = [word for word in extra if word.startswith(f"{module}.")]
            if partly and name not in {*partly, module}:
                found.append(f"{source.path}:{line}: {name}, where only {', '.join(partly)} is allowed")
            if CLOCKS.search(name):
                found.append(f"{source.path}:{line}: {name} reads a clock")
        found += [
            f"{source.path}:{node.lineno}: {node.func.id}() in a pure module"
            for node in ast.walk(ast.parse(source.text))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS
        ]
    return found


def edges(sources: list[Source]) -> list[str]:
    """What knows a format, a kernel call or a library lives in the package that owns it."""
    found = []
    for source in modules(sources):
        imported = set(imports(source))
        found += [
            f"{source.path}:{line}: {owned} belongs to {', '.join(sorted(owners))}"
            for line, name in uses(source)
            for owned, owners in ONLY_IN.items()
            if under(name, {owned}) and source.package not in owners and ("." in owned or (line, name) in imported)
        ]
        if JOURNAL_MAGIC in source.text and source.package != "journald":
            found.append(f"{source.path}: only journald/ parses journal headers")
    return found


def probes_are_for_commands(sources: list[Source]) -> list[str]:
    """A test bed is no part of the product."""
    return [
        f"{source.path}:{line}: {source.package} uses a probe"
        for source in modules(sources)
        if source.package not in {"probe", "cli"}
        for line, name in imports(source)
        if under(name, {f"{PACKAGE}.probe"})
    ]


def one_mailbox(sources: list[Source]) -> list[str]:
    """Threads hand over to an event loop in one module."""
    return [
        f"{source.path}: only {MAILBOX} hands over to an event loop"
        for source in modules(sources)
        if source.inside != MAILBOX and "call_soon_threadsafe" in source.text
    ]


def top_modules(sources: list[Source]) -> list[str]:
    """Beside the packages there are three modules."""
    return [
        f"{source.path}: a module belongs into a package"
        for source in modules(sources)
        if "/" not in source.inside and source.package not in {"__main__", "engine"}
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
CHECKS: tuple[Check, ...] = (
    *(order, cycles, purity, edges, probes_are_for_commands, one_mailbox, top_modules),
    *(licensed, short, homeless, top_level),
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_repository_passes(check: Check) -> None:
    complaints = check(repository())
    assert not complaints, "\n".join(complaints)


BAD: list[tuple[Check, str, str, str]] = [
    (order, "policy/rules.py", "from journalkeeper.btrfs import fiemap", "policy may not import btrfs"),
    (order, "policy/rules.py", "from ..observe import observer", "policy may not import observe"),
    (order, "policy/rules.py", "from .. import execute", "policy may not import execute"),
    (order, "model/files.py", "import journalkeeper.policy", "model may not import policy"),
    (order, "btrfs/fiemap.py", "from journalkeeper import journald", "btrfs may not import journald"),
    (order, "observe/x.py", "def late():\n    from journalkeeper import engine", "observe may not import engine"),
    (order, "engine.py", "from journalkeeper.cli import main", "engine may not import cli"),
    (order, "service/x.py", "from journalkeeper.bus import names", "service may not import bus"),
    (order, "attic/x.py", "", "attic is not in ORDER"),
    (purity, "policy/rules.py", "import os", "os is outside"),
    (purity, "policy/rules.py", "from time import monotonic", "time.monotonic is outside"),
    (purity, "config/spec.py", "import subprocess", "subprocess is outside"),
    (purity, "model/files.py", "import socket", "socket is outside"),
    (purity, "policy/rules.py", "import pydantic", "pydantic is outside"),
    (purity, "metrics/status.py", "import time", "time is outside"),
    (purity, "model/errors.py", "import os\nos.unlink('x')", "only os.strerror is allowed"),
    (purity, "model/errors.py", "from os import unlink", "only os.strerror is allowed"),
    (purity, "report/page.py", "from datetime import datetime\ndatetime.now()", "reads a clock"),
    (purity, "report/page.py", "import datetime\ndatetime.datetime.now(datetime.UTC)", "reads a clock"),
    (purity, "policy/rules.py", "open('/etc/passwd')", "open() in a pure module"),
    (edges, "execute/x.py", "import ctypes", "ctypes belongs to btrfs"),
    (edges, "journald/header.py", "import fcntl\nfcntl.ioctl(0, 0)", "fcntl.ioctl belongs to btrfs"),
    (edges, "engine.py", "from fcntl import ioctl", "fcntl.ioctl belongs to btrfs"),
    (edges, "observe/x.py", "import struct", "struct belongs to"),
    (edges, "observe/x.py", f"MAGIC = b'{JOURNAL_MAGIC}'", "only journald/ parses"),
    (
        probes_are_for_commands,
        "service/x.py",
        "from journalkeeper.probe.scratch_volume import run",
        "service uses a probe",
    ),
    (one_mailbox, "bus/x.py", "loop.call_soon_threadsafe(print)", "only service/daemon.py"),
    (top_modules, "helpers.py", "", "belongs into a package"),
    (licensed, "model/x.py", "'''No license.'''\n", "no SPDX line"),
    (short, "model/x.py", "def long():\n" + "    pass\n" * FUNCTION_LINES, "long has 51 lines"),
    (short, "model/x.py", "x = 1\n" * (MODULE_LINES + 1), "401 lines"),
    (homeless, "model/x.py", "# see /wo" + "rk/shared", "model/x.py:1"),
    (homeless, "model/x.py", "x = 1\n# TO" + "DO: later", "model/x.py:2"),
]


@pytest.mark.parametrize(("check", "path", "text", "complaint"), BAD)
def test_a_bad_source_is_found(check: Check, path: str, text: str, complaint: str) -> None:
    complaints = check([Source(f"{PACKAGE}/{path}", text)])
    assert any(complaint in line for line in complaints), complaints


GOOD: list[tuple[Check, str, str]] = [
    (order, "policy/rules.py", "from journalkeeper.model import Host\nfrom .case import Case"),
    (order, "model/x.py", "from journalkeeper import __version__"),
    (purity, "model/errors.py", "import os\nos.strerror(2)"),
    (purity, "config/validation.py", "from pydantic import BaseModel"),
    (purity, "config/files.py", "import os\nos.listdir('/etc')"),
    (purity, "policy/case.py", "def asked(request):\n    return request.now"),
    (edges, "history/state.py", "import fcntl\nfcntl.flock(0, 0)"),
    (probes_are_for_commands, "cli/lab.py", "from journalkeeper.probe import compare"),
    (short, "model/x.py", "def long():\n" + "    pass\n" * (FUNCTION_LINES - 1)),
    (short, "model/x.py", "x = 1\n" * MODULE_LINES),
]


@pytest.mark.parametrize(("check", "path", "text"), GOOD)
def test_what_is_allowed_is_not_complained_about(check: Check, path: str, text: str) -> None:
    assert check([Source(f"{PACKAGE}/{path}", text)]) == []


def test_a_stranger_at_the_top_level_is_found() -> None:
    assert top_level([Source("docs/index.md", ""), Source(".ci/run", ""), Source("units/a.service", "")]) == [
        "docs is not agreed on at the top level"
    ]


def test_modules_that_need_each_other_are_found() -> None:
    there = Source(f"{PACKAGE}/policy/a.py", "from journalkeeper.policy import b")
    back = Source(f"{PACKAGE}/policy/b.py", "def late():\n    from journalkeeper.policy.a import c")
    third = Source(f"{PACKAGE}/policy/c.py", "import journalkeeper.policy.a")
    assert cycles([there, third]) == []
    assert len(cycles([there, back, third])) == 1


def test_every_check_has_been_seen_to_fail() -> None:
    assert {check for check, *_ in BAD} | {top_level, cycles} == set(CHECKS)


def test_the_checks_saw_the_package() -> None:
    seen = {source.package for source in repository()}
    assert {"model", "engine", "probe", "policy"} <= seen
