# SPDX-License-Identifier: LGPL-2.1-or-later
"""Plain text as source for man(7).

Nothing in the text becomes a macro by accident. Three marks have a meaning: `word` is bold, *word* is italic, and the
name of a page such as journald.conf(5) is bold.
Source: man(7); groff_char(7), "Fundamental character set", for the characters that must be escaped.
"""

from __future__ import annotations

import re
import textwrap

COLUMNS = 78
"""mandoc warns of longer lines of source."""

_MARK = re.compile(r"`(?P<bold>[^`]+)`|(?<!\w)\*(?P<italic>[^*\s]+)\*|(?P<page>\b[a-z][\w.-]*\w)(?=\(\d\))")
_NAMES = {"journalkeeper", "journald", "systemd"}
_SENTENCE_END = re.compile(r"(?<=[^.][.!?:]) +(?=(?:\\fB)?[A-Z])")
_ODD = {"\\": r"\e", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"}
_LITERAL = {**_ODD, "-": r"\-", "'": r"\(aq"}


def literal(text: str) -> str:
    """Return `text` with hyphens and quotes that a reader can copy."""
    return _safe("".join(_LITERAL.get(letter, letter) for letter in text))


def prose(text: str) -> list[str]:
    """Return the lines of one paragraph. Each sentence begins a line, as man(7) recommends."""
    parts, end = [], 0
    for mark in _MARK.finditer(text):
        parts += [_plain(text[end : mark.start()]), f"\\f{'I' if mark['italic'] else 'B'}{_escape_typed(mark)}\\fR"]
        end = mark.end()
    whole = "".join([*parts, _plain(text[end:])])
    lines: list[str] = []
    for one in _SENTENCE_END.split(whole):
        lines += textwrap.wrap(one, COLUMNS, break_long_words=False, break_on_hyphens=False)
    return [_safe(line) for line in lines]


def example(lines: list[str]) -> list[str]:
    """Return lines that are printed as they are, indented."""
    return [".RS 4", ".EX", *(literal(line) for line in lines), ".EE", ".RE"]


def item(term: str, *paragraphs: str) -> list[str]:
    """Return a tagged paragraph and those below it. `term` is source, and the paragraphs are plain text."""
    lines = [".TP", _safe(term)]
    for number, paragraph in enumerate(paragraphs):
        lines += [".IP" if number else "", *prose(paragraph)]
    return [line for line in lines if line]


def bold(text: str) -> str:
    """Return `text` as typed, in bold."""
    return f"\\fB{literal(text)}\\fR"


def italic(text: str) -> str:
    """Return `text` as typed, in italic: a placeholder."""
    return f"\\fI{literal(text)}\\fR"


def sentence(text: str) -> str:
    """Return `text` with a capital letter and a full stop. A program's name keeps its lower case."""
    word = re.match(r"[a-z]+(?=[ ,:;])", text)
    first = text[:1].upper() + text[1:] if word and word[0] not in _NAMES else text
    return first if first.endswith((".", "!", "?")) else f"{first}."


def _escape_typed(mark: re.Match[str]) -> str:
    text = mark["bold"] or mark["italic"] or mark["page"]
    return "".join(_LITERAL.get(letter, letter) for letter in text)


def _plain(text: str) -> str:
    """Escape prose. A hyphen at the beginning of a word is a typed one; within a word it is a typographer's."""
    escaped = "".join(_ODD.get(letter, letter) for letter in text)
    return re.sub(r"(?<![\w)])-", r"\\-", escaped)


def _safe(line: str) -> str:
    return rf"\&{line}" if line[:1] in {".", "'"} else line
