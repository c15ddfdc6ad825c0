# SPDX-License-Identifier: LGPL-2.1-or-later
"""The meanings of values and directives, from the strings below fields and the docstrings of properties."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from typing import Any

from journalkeeper.config import Config
from journalkeeper.config.directives import Directive
from journalkeeper.model.schema import Row


@cache
def read_meanings(kind: Any) -> dict[str, str]:
    """Return the meaning of each field and property of a record; fields without one are left out."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    found: dict[str, str] = {}
    name = ""
    for one in body.body if isinstance(body, ast.ClassDef) else ():
        match one:
            case ast.AnnAssign(target=ast.Name(id=name)):
                continue
            case ast.Expr(value=ast.Constant(value=str(text))) if name:
                found[name] = _join_lines(text)
            case ast.FunctionDef():
                found[one.name] = _join_lines(ast.get_docstring(one) or "")
        name = ""
    return found


def _join_lines(text: str) -> str:
    """Return a text with one line for each paragraph."""
    return "\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def describe_directive(directive: Directive) -> tuple[str, str]:
    """Return the effect of a directive, and the reason for its default."""
    section: Any = type(getattr(Config(), directive.section.lower()))
    what, why = read_meanings(section)[directive.field].split("\n")
    return what, why


def describe(row: Row) -> str:
    """Return the meaning of a published value; "" if it has none."""
    return read_meanings(row.kind).get(row.attribute, "")
