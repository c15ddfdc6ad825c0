# SPDX-License-Identifier: LGPL-2.1-or-later
"""Completions for bash, zsh and fish: the templates in shells/, filled from the command line's grammar.

A completion starts no program: everything it offers is in its file, except names of files.
"""

from __future__ import annotations

import re
from pathlib import Path

import grammar
from jinja2 import Environment, FileSystemLoader, StrictUndefined


def complete(shell: str, top: grammar.Command) -> str:
    """Return the file of completions for "bash", "zsh" or "fish"."""
    commands = list(top.all())
    inherited = [option for option in top.options if "--version" not in option.flags]

    def list_options(command: grammar.Command) -> list[grammar.Option]:
        return [*inherited, *command.options] if command.path else [*command.options]

    environment = Environment(
        *("<%", "%>", "<<", ">>", "<#", "#>", "%%"),
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        loader=FileSystemLoader(Path(__file__).parent / "shells"),
        autoescape=False,  # noqa: S701 - each shell has its own quotes
    )
    environment.filters["zsh"] = lambda text: re.sub(r"([\\:\[\]])", r"\\\1", text)
    environment.filters["quote"] = lambda text: "'" + text.replace("'", r"'\''") + "'"
    environment.filters["fish"] = lambda text: "'" + text.replace("\\", r"\\").replace("'", r"\'") + "'"
    valued = {option.flags: option for command in commands for option in command.options if option.value}
    return environment.get_template(shell).render(
        commands=commands, inherited=inherited, options=list_options, valued=valued.values()
    )
