# SPDX-License-Identifier: LGPL-2.1-or-later
"""The meanings of a record's values: the strings below its fields, and the docstrings of its properties."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache

from journalkeeper.model.record import Row


@cache
def read_meanings(kind: type) -> dict[str, str]:
    """Return the meaning of each field and property of a record that has one."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    found: dict[str, str] = {}
    name = ""
    for one in body.body if isinstance(body, ast.ClassDef) else ():
        match one:
            case ast.AnnAssign(target=ast.Name(id=name)):
                continue
            case ast.Expr(value=ast.Constant(value=str(text))) if name:
                found[name] = " ".join(text.split())
            case ast.FunctionDef():
                found[one.name] = " ".join((ast.get_docstring(one) or "").split())
        name = ""
    return found


def describe(row: Row) -> str:
    """Return the meaning of a published value, or ""."""
    return read_meanings(row.kind).get(row.attribute, "")
