# SPDX-License-Identifier: LGPL-2.1-or-later
"""Text as man(7) wants it.

What comes in is plain text, and nothing in it can become a macro by accident.
Three marks are known: `so` is bold, *so* is italic, and a page such as journald.conf(5) is bold.
Source: man(7), groff_char(7), "Fundamental character set" for what must be escaped.
"""

from __future__ import annotations

import re
import textwrap

COLUMNS = 78
"""Longer lines of source are against mandoc's style."""

_MARK = re.compile(r"`(?P<bold>[^`]+)`|(?<!\w)\*(?P<italic>[^*\s]+)\*|(?P<page>\b[a-z][\w.-]*\w)(?=\(\d\))")
_NAMES = {"journalkeeper", "journald", "systemd"}
_SENTENCE_END = re.compile(r"(?<=[^.][.!?:]) +(?=(?:\\fB)?[A-Z])")
_ODD = {"\\": r"\e", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"}
_LITERAL = {**_ODD, "-": r"\-", "'": r"\(aq"}


def literal(text: str) -> str:
    """`text` as it is typed: hyphens and quotes that can be copied."""
    return _safe("".join(_LITERAL.get(letter, letter) for letter in text))


def prose(text: str) -> list[str]:
    """The lines of one paragraph; a sentence begins a line, as man(7) wants it."""
    parts, end = [], 0
    for mark in _MARK.finditer(text):
        parts += [_plain(text[end : mark.start()]), f"\\f{'I' if mark['italic'] else 'B'}{_typed(mark)}\\fR"]
        end = mark.end()
    whole = "".join([*parts, _plain(text[end:])])
    lines: list[str] = []
    for one in _SENTENCE_END.split(whole):
        lines += textwrap.wrap(one, COLUMNS, break_long_words=False, break_on_hyphens=False)
    return [_safe(line) for line in lines]


def example(lines: list[str]) -> list[str]:
    """Lines as they are, indented."""
    return [".RS 4", ".EX", *(literal(line) for line in lines), ".EE", ".RE"]


def item(term: str, *paragraphs: str) -> list[str]:
    """A tagged paragraph and those that belong to it; `term` is source already."""
    lines = [".TP", _safe(term)]
    for number, paragraph in enumerate(paragraphs):
        lines += [".IP" if number else "", *prose(paragraph)]
    return [line for line in lines if line]


def bold(text: str) -> str:
    """As typed, in bold."""
    return f"\\fB{literal(text)}\\fR"


def italic(text: str) -> str:
    """As typed, in italic: a word that stands for something."""
    return f"\\fI{literal(text)}\\fR"


def sentence(text: str) -> str:
    """`text` with a capital letter and a full stop; a name in lower case stays so."""
    word = re.match(r"[a-z]+(?=[ ,:;])", text)
    first = text[:1].upper() + text[1:] if word and word[0] not in _NAMES else text
    return first if first.endswith((".", "!", "?")) else f"{first}."


def _typed(mark: re.Match[str]) -> str:
    text = mark["bold"] or mark["italic"] or mark["page"]
    return "".join(_LITERAL.get(letter, letter) for letter in text)


def _plain(text: str) -> str:
    """Prose: a hyphen within a word may be a typographer's, one at a word's beginning is typed."""
    escaped = "".join(_ODD.get(letter, letter) for letter in text)
    return re.sub(r"(?<![\w)])-", r"\\-", escaped)


def _safe(line: str) -> str:
    return rf"\&{line}" if line[:1] in {".", "'"} else line
