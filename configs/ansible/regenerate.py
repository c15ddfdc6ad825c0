# SPDX-License-Identifier: LGPL-2.1-or-later
"""Write the role's files on journalkeeper.conf's directives: python3 configs/ansible/regenerate.py [--check]

A directive is defined in journalkeeper/config/directives.py and nowhere else. The
role's argument_specs.yml, its defaults' comments and its vars come from there, and the version in
galaxy.yml from journalkeeper/__init__.py; with --check nothing is written, and the exit status is 1
if a file would change.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE.parent / "man")]

from meanings import describe_directive  # noqa: E402

from journalkeeper import __version__  # noqa: E402
from journalkeeper.config.directives import Directive, directives  # noqa: E402
from journalkeeper.config.spec import Form  # noqa: E402
from journalkeeper.config.validation import AT_LEAST  # noqa: E402 - from this checkout, wherever it was started

MARK = "# -- written by configs/ansible/regenerate.py from journalkeeper's directives "
TYPES = {Form.BOOL: "bool", Form.COUNT: "int", Form.PATHS: "list"}
WIDTH = 96


def variable(directive: Directive) -> str:
    """A directive's variable: journalkeeper_SECTION_NAME in small letters, a word each."""
    name = directive.spec.name.replace("MiB", "Mib")
    return f"journalkeeper_{directive.section}_{re.sub(r'(?<=[a-z])(?=[A-Z])', '_', name)}".lower()


def folded(text: str, indent: int) -> str:
    """A YAML block scalar of `text`, a line break being a space."""
    margin = " " * indent
    return ">-\n" + textwrap.fill(
        text, WIDTH, initial_indent=margin, subsequent_indent=margin, break_long_words=False, break_on_hyphens=False
    )


def option(directive: Directive) -> str:
    """One directive in argument_specs.yml."""
    spec = directive.spec
    default = f"journalkeeper's own default is {directive.default or 'none'}."
    rows = [
        f"      {variable(directive)}:",
        f"        type: {TYPES.get(spec.form, 'str')}",
        *(["        elements: str"] if spec.form is Form.PATHS else []),
        *(["        choices:", *(f'          - "{word}"' for word in spec.words)] if spec.words else []),
        "        description:",
        f"          - {folded(f'[{directive.section}] {spec.name}=. {describe_directive(directive)[0]}', 12)}",
        f"          - {folded(f'Allowed is {spec.allowed}; {default}', 12)}",
    ]
    return "".join(f"{row}\n" for row in rows)


def comment(directive: Directive) -> str:
    """One directive in defaults/main.yml: a comment, as what is not set is left to journalkeeper."""
    default = directive.default or '""'
    if directive.spec.form is Form.PATHS:
        default = f"[{default}]"
    elif directive.spec.form is Form.BOOL:
        default = {"yes": "true", "no": "false"}[default]
    return f"# {variable(directive)}: {default}\n"


def row(directive: Directive) -> str:
    """One directive in vars/main/directives.yml, for the filters."""
    spec = directive.spec
    below = dict(AT_LEAST).get((directive.section, spec.name))
    facts: dict[str, object] = {
        "variable": variable(directive),
        "section": directive.section,
        "name": spec.name,
        "form": spec.form.name.lower(),
        "default": directive.default,
        "allowed": spec.allowed,
    }
    if spec.words:
        facts["words"] = list(spec.words)
    if spec.high is not None:
        facts |= {"low": spec.low, "high": spec.high}
    if spec.endless:
        facts["endless"] = True
    if below:
        facts["not_below"] = next(variable(one) for one in directives() if (one.section, one.spec.name) == below)
    return "".join(
        f"{'  - ' if number == 0 else '    '}{name}: {json.dumps(fact)}\n"
        for number, (name, fact) in enumerate(facts.items())
    )


def vars_file() -> str:
    """vars/main/directives.yml: the directives as data, and the values that a play gives them."""
    values = "".join(f'  {name}: "{{{{ {name} | default(none) }}}}"\n' for name in map(variable, directives()))
    return (
        f"---\n# SPDX-License-Identifier: LGPL-2.1-or-later\n{MARK.strip()}\n"
        f"__journalkeeper_directives:\n{''.join(map(row, directives()))}\n__journalkeeper_values:\n{values}"
    )


def files() -> dict[Path, str]:
    """The whole text of each file; what stands above the mark in one is kept."""
    role = HERE / "roles/journalkeeper"
    specs, defaults = role / "meta/argument_specs.yml", role / "defaults/main.yml"
    galaxy = HERE / "galaxy.yml"
    return {
        galaxy: re.sub(r"(?m)^version: .*$", f"version: {__version__}", galaxy.read_text()),
        specs: _below_mark(specs, "".join(map(option, directives())), "      "),
        defaults: _below_mark(defaults, "".join(map(comment, directives())), ""),
        role / "vars/main/directives.yml": vars_file(),
    }


def _below_mark(file: Path, text: str, margin: str) -> str:
    head, mark, _ = file.read_text().partition(margin + MARK.strip())
    if not mark:
        raise SystemExit(f"{file}: has no line {MARK.strip()!r}")
    return f"{head}{mark}\n{text}"


def main(words: list[str]) -> int:
    """Write the files, or with --check say which would change."""
    changed = [file for file, text in files().items() if not file.exists() or file.read_text() != text]
    for file in changed:
        sys.stdout.write(f"{file.relative_to(HERE)}\n")
        if words != ["--check"]:
            file.parent.mkdir(exist_ok=True)
            file.write_text(files()[file])
    return 1 if changed and words == ["--check"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
