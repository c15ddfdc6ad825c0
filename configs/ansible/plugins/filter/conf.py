# SPDX-License-Identifier: LGPL-2.1-or-later
"""The filter that turns the role's variables into lines of journalkeeper.conf.

It judges no value: `journalkeeper check-config` on the host does.
"""

from __future__ import annotations

import shlex


def format_value(value: object) -> str:
    """Return a variable's value as journalkeeper.conf has it; "" if the variable is not set.

    Raises: ValueError if it has more than one line, because the next line would be a directive or a section of its own,
    or ends with a backslash, because the next directive would be a part of it.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return shlex.join(map(format_value, value))
    text = str(value).strip()
    if not text.isprintable() or text.endswith("\\"):
        raise ValueError(f"{text!r}: a value has one line, without control characters or a backslash at its end")
    return text


def format_lines(values: dict[str, object], directives: list[dict[str, str]]) -> str:
    """Return the sections and lines of a drop-in that sets `values`; "" if no variable is set.

    Each of `directives` has the name of its variable, its section and its name there.
    """
    sections: dict[str, list[str]] = {}
    for one in directives:
        if text := format_value(values.get(one["variable"])):
            sections.setdefault(one["section"], []).append(f"{one['name']}={text}\n")
    return "".join(f"\n[{section}]\n{''.join(rows)}" for section, rows in sections.items())


class FilterModule:
    """The class that Ansible looks for in this file."""

    def filters(self) -> dict[str, object]:
        """Return the filters by the names that playbooks use."""
        return {"conf_lines": format_lines}
