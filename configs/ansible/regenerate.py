# SPDX-License-Identifier: LGPL-2.1-or-later
"""Write the role's files about the directives of journalkeeper.conf: python3 configs/ansible/regenerate.py [--check]

A directive is defined in journalkeeper/config and nowhere else. The role's argument_specs.yml, the comments of its
defaults and its vars are made from there, and the version in galaxy.yml from journalkeeper/__init__.py. With --check
nothing is written, and the exit status is 1 if a file would change.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE.parent / "man")]

from meanings import describe_directive  # noqa: E402

from journalkeeper import __version__  # noqa: E402
from journalkeeper.config.directives import Directive, list_directives  # noqa: E402
from journalkeeper.config.spec import Form  # noqa: E402 - from this checkout, wherever it was started

MARK = "# -- written by configs/ansible/regenerate.py from journalkeeper's directives "
TYPES = {Form.BOOL: "bool", Form.COUNT: "int", Form.PATHS: "list"}
WIDTH = 96


def variable(directive: Directive) -> str:
    """Return the name of a directive's variable: journalkeeper_SECTION_NAME in snake case."""
    name = directive.spec.name.replace("MiB", "Mib")
    return f"journalkeeper_{directive.section}_{re.sub(r'(?<=[a-z])(?=[A-Z])', '_', name)}".lower()


def fold(text: str, indent: int) -> str:
    """Return `text` as a YAML block scalar in which a line break stands for a space."""
    margin = " " * indent
    return ">-\n" + textwrap.fill(
        text, WIDTH, initial_indent=margin, subsequent_indent=margin, break_long_words=False, break_on_hyphens=False
    )


def option(directive: Directive) -> str:
    """Return one directive of argument_specs.yml."""
    spec = directive.spec
    default = f"journalkeeper's own default is {directive.default or 'none'}."
    rows = [
        f"      {variable(directive)}:",
        f"        type: {TYPES.get(spec.form, 'str')}",
        *(["        elements: str"] if spec.form is Form.PATHS else []),
        *(["        choices:", *(f'          - "{word}"' for word in spec.words)] if spec.words else []),
        "        description:",
        f"          - {fold(f'[{directive.section}] {spec.name}=. {describe_directive(directive)[0]}', 12)}",
        f"          - {fold(f'Allowed is {spec.allowed}; {default}', 12)}",
    ]
    return "".join(f"{row}\n" for row in rows)


def comment(directive: Directive) -> str:
    """Return one line of defaults/main.yml: a comment, because journalkeeper has the default itself."""
    default = directive.default or '""'
    if directive.spec.form is Form.PATHS:
        default = f"[{default}]"
    elif directive.spec.form is Form.BOOL:
        default = {"yes": "true", "no": "false"}[default]
    return f"# {variable(directive)}: {default}\n"


def row(directive: Directive) -> str:
    """Return one directive of vars/main/directives.yml, which the filter reads."""
    names = f"section: {directive.section}, name: {directive.spec.name}"
    return f"  - {{variable: {variable(directive)}, {names}}}\n"


def vars_file() -> str:
    """Return vars/main/directives.yml: the directives as data, and the values that a play gives them."""
    values = "".join(f'  {name}: "{{{{ {name} | default(none) }}}}"\n' for name in map(variable, list_directives()))
    return (
        f"---\n# SPDX-License-Identifier: LGPL-2.1-or-later\n{MARK.strip()}\n"
        f"__journalkeeper_directives:\n{''.join(map(row, list_directives()))}\n__journalkeeper_values:\n{values}"
    )


def files() -> dict[Path, str]:
    """Return the new text of each file. Text above the mark is kept. Raises: SystemExit if a file has no mark."""
    role = HERE / "roles/journalkeeper"
    specs, defaults = role / "meta/argument_specs.yml", role / "defaults/main.yml"
    galaxy = HERE / "galaxy.yml"
    return {
        galaxy: re.sub(r"(?m)^version: .*$", f"version: {__version__}", galaxy.read_text()),
        specs: _below_mark(specs, "".join(map(option, list_directives())), "      "),
        defaults: _below_mark(defaults, "".join(map(comment, list_directives())), ""),
        role / "vars/main/directives.yml": vars_file(),
    }


def _below_mark(file: Path, text: str, margin: str) -> str:
    head, mark, _ = file.read_text().partition(margin + MARK.strip())
    if not mark:
        raise SystemExit(f"{file}: has no line {MARK.strip()!r}")
    return f"{head}{mark}\n{text}"


def main(words: list[str]) -> int:
    """Print the files that change, and write them unless --check is given; return 1 if --check finds one."""
    changed = [file for file, text in files().items() if not file.exists() or file.read_text() != text]
    for file in changed:
        sys.stdout.write(f"{file.relative_to(HERE)}\n")
        if words != ["--check"]:
            file.parent.mkdir(exist_ok=True)
            file.write_text(files()[file])
    return 1 if changed and words == ["--check"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
