# SPDX-License-Identifier: LGPL-2.1-or-later
"""Completions for bash, zsh and fish, made from the command line's grammar.

A completion starts no program: everything it offers is in its file, except names of files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import grammar

SHELLS: Final = Path(__file__).parent / "shells"
"""The fixed parts of the files. @word@ stands for a generated part."""

TIMES: Final = ("today", "yesterday", "now")
METHODS: Final = ("zstd", "zlib", "lzo", "no")

DIRECTORIES, FILES, JOURNALS, NOTHING = "directories", "files", "journals", ""
"""The kinds of values that are no fixed words."""

KINDS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "DIR": (DIRECTORIES, ()),
    "FILE": (FILES, ()),
    "PATH": (JOURNALS, ()),
    "TIME": (NOTHING, TIMES),
    "HOW": (NOTHING, METHODS),
}
"""For the name of a value in --help, its kind and its words."""


def _kind(option: grammar.Option) -> tuple[str, tuple[str, ...]]:
    if option.words:
        return NOTHING, option.words
    return KINDS.get(option.value, (NOTHING, ()))


def _options_with_value(top: grammar.Command) -> Iterator[grammar.Option]:
    """Yield every option that takes a value."""
    for command in top.all():
        yield from (option for option in command.options if option.value)


def _fill(shell: str, **made: str) -> str:
    """Return the shell's file with its generated parts."""
    return re.sub(r"@(\w+)@", lambda place: made[place[1]], (SHELLS / shell).read_text())


def bash(top: grammar.Command) -> str:
    """Return the file for /usr/share/bash-completion/completions/."""
    values = {flag: _kind(option) for option in _options_with_value(top) for flag in option.flags}
    arms = [
        f"        {'|'.join(flags)}) {_bash_value(kind, words)} ;;" for flags, kind, words in _group_by_value(values)
    ]
    states = []
    for command in top.all():
        options = sorted({flag for option in (*top.options, *command.options) for flag in _bash_flags(option)})
        if command.path:
            options.remove("--version")
        words = [below.path[-1] for below in command.commands]
        names = ""
        for argument in command.arguments:
            kind, allowed = _kind(argument)
            names = names or kind
            words += allowed
        key = " ".join(command.path)
        states.append(f'        "{key}") options="{" ".join(options)}" words="{" ".join(words)}" names={names} ;;')
    paths = " ".join(f'["{" ".join(command.path)}"]=1' for command in top.all() if command.path)
    takes = " ".join(f'["{flag}"]=1' for flag in values)
    return _fill("bash", paths=paths, takes=takes, values="\n".join(arms), states="\n".join(states))


def _bash_flags(option: grammar.Option) -> list[str]:
    return [f"{flag}=" if option.value and flag.startswith("--") else flag for flag in option.flags]


def _group_by_value(
    values: dict[str, tuple[str, tuple[str, ...]]],
) -> list[tuple[list[str], str, tuple[str, ...]]]:
    """Return the flags that take the same values in groups, each with the kind and the words of the values."""
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for flag, meaning in values.items():
        groups.setdefault(meaning, []).append(flag)
    return [(flags, kind, words) for (kind, words), flags in groups.items()]


def _bash_value(kind: str, words: tuple[str, ...]) -> str:
    if kind == DIRECTORIES:
        return 'compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$cur"); return'
    if kind in {FILES, JOURNALS}:
        return 'compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return'
    return f'mapfile -t COMPREPLY < <(compgen -W "{" ".join(words)}" -- "$cur"); return'


ZSH_ACTIONS: Final = {DIRECTORIES: "_files -/", FILES: "_files", JOURNALS: "_journalkeeper_journals"}


def zsh(top: grammar.Command) -> str:
    """Return the file _journalkeeper for a directory in zsh's fpath."""
    functions = "\n".join(_zsh_function(top, command) for command in top.all())
    return _fill("zsh", functions=functions)


def _zsh_function(top: grammar.Command, command: grammar.Command) -> str:
    """Return the function of a command, which calls the function of a command below it."""
    inherited = [option for option in top.options if not command.path or "--version" not in option.flags]
    options = [*inherited, *(command.options if command.path else ())]
    specs = [spec for option in options for spec in _zsh_option(option)]
    if command.commands:
        specs += ["'(-): :->command'", "'(-)*:: :->argument'"]
    specs += [_zsh_argument(number, argument) for number, argument in enumerate(command.arguments, 1)]
    listed = " \\\n        ".join(specs)
    described = "\n".join(
        f"            {_zsh_quote(f'{below.path[-1]}:{_zsh_escape(below.summary)}')}" for below in command.commands
    )
    name = _zsh_name(command)
    if not command.commands:
        return f"{name}() {{\n    _arguments -s -S \\\n        {listed}\n}}\n"
    return ZSH_WITH_COMMANDS.format(name=name, specs=listed, described=described)


def _zsh_name(command: grammar.Command) -> str:
    return "_".join(["_journalkeeper_program", *(word.replace("-", "_") for word in command.path)])


def _zsh_option(option: grammar.Option) -> list[str]:
    """Return a specification for each flag of an option. Each flag excludes the others."""
    kind, words = _kind(option)
    action = ZSH_ACTIONS.get(kind, f"({' '.join(words)})" if words else " ")
    takes = f":{_zsh_escape(option.value)}:{action}" if option.value else ""
    specs = []
    for flag in option.flags:
        form = flag if not option.value else f"{flag}=" if flag.startswith("--") else f"{flag}+"
        specs.append(_zsh_quote(f"({' '.join(option.flags)}){form}[{_zsh_escape(option.help)}]{takes}"))
    return specs


def _zsh_argument(number: int, argument: grammar.Option) -> str:
    kind, words = _kind(argument)
    where = "*" if kind == JOURNALS else number
    action = f"({' '.join(words)})" if words else ZSH_ACTIONS.get(kind, "_files")
    return _zsh_quote(f"{where}:{_zsh_escape(argument.value)}:{action}")


def _zsh_escape(text: str) -> str:
    return re.sub(r"([\\:\[\]])", r"\\\1", text)


def _zsh_quote(text: str) -> str:
    return "'" + text.replace("'", r"'\''") + "'"


ZSH_WITH_COMMANDS: Final = r"""{name}() {{
    local curcontext=$curcontext state line
    local -A opt_args
    _arguments -s -S -C \
        {specs} && return
    case $state in
    command)
        local -a commands=(
{described}
        )
        _describe command commands
        ;;
    argument)
        local below={name}_${{line[1]//-/_}}
        curcontext=${{curcontext%:*:*}}:journalkeeper-$line[1]:
        ((! $+functions[$below])) || $below
        ;;
    esac
}}
"""


FISH_ACTIONS: Final = {DIRECTORIES: "(__fish_complete_directories)", JOURNALS: "(__journalkeeper_journals)"}


def fish(top: grammar.Command) -> str:
    """Return the file for /usr/share/fish/vendor_completions.d/."""
    lines = []
    for command in top.all():
        at = _fish_at(command)
        lines += [
            f"complete -c journalkeeper -n {at} -a {below.path[-1]} -d {_fish_quote(below.summary)}"
            for below in command.commands
        ]
        for option in command.options if command.path else top.options:
            where = "" if not command.path and "--version" not in option.flags else f" -n {at}"
            lines.append(f"complete -c journalkeeper{where}{_fish_option(option)}")
        for argument in command.arguments:
            kind, words = _kind(argument)
            given = _fish_quote(FISH_ACTIONS.get(kind, " ".join(words)))
            lines.append(f"complete -c journalkeeper -n {at} -a {given}")
    paths = " ".join(_fish_quote(" ".join(command.path)) for command in top.all() if command.path)
    takes = " ".join(sorted({flag for option in _options_with_value(top) for flag in option.flags}))
    return _fill("fish", paths=paths, takes=takes, lines="\n".join(lines))


def _fish_at(command: grammar.Command) -> str:
    return _fish_quote(f'test "$(__journalkeeper_command)" = "{" ".join(command.path)}"')


def _fish_option(option: grammar.Option) -> str:
    flags = "".join(f" -l {flag[2:]}" if flag.startswith("--") else f" -s {flag[1:]}" for flag in option.flags)
    kind, words = _kind(option)
    takes = ""
    if kind == DIRECTORIES:
        takes = f" -x -a {_fish_quote(FISH_ACTIONS[kind])}"
    elif kind in {FILES, JOURNALS}:
        takes = " -r -F"
    elif option.value:
        takes = f" -x -a {_fish_quote(' '.join(words))}"
    return f"{flags}{takes} -d {_fish_quote(option.help)}"


def _fish_quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", r"\'") + "'"
