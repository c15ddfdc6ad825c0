# SPDX-License-Identifier: LGPL-2.1-or-later
"""One HTML page that needs nothing else: no script, no network, at most MOST_BYTES.

Each chart is drawn twice, for a wide and a narrow screen, as text in a drawing shrinks with it. What grows with a
record, the rows of actions, is cut until the page fits; older actions are then sums, and no action goes uncounted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from journalkeeper import __version__
from journalkeeper.health.evidence import Evidence, Unknown
from journalkeeper.health.finding import Fact, Finding, Verdict
from journalkeeper.model import Plan, Reason, Skip, Sums
from journalkeeper.model.reasons import SENTENCES
from journalkeeper.model.recorded import Entry
from journalkeeper.model.units import counted, format_size
from journalkeeper.policy.saving import READ_IOPS, read_seconds_saved
from journalkeeper.report import charts, style, svg
from journalkeeper.report.figure import Figure, Table
from journalkeeper.report.growth import growth
from journalkeeper.report.text import UNKNOWN, html, seconds, when

MOST_BYTES: Final = 500 << 10
MOST_ACTIONS: Final = 400
"""Actions that have a row each; older ones are summed up by month."""

MOST_PLANNED: Final = 100
WIDE: Final = 900
NARROW: Final = 360
LONG: Final = 600
"""Characters of a sentence or a command, where a name has fewer."""

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
"""Content Security Policy Level 3: the browser itself sees to it that nothing is run or fetched."""


def page(evidence: Evidence, verdict: Verdict, host: str) -> str:
    """The page of `host`, in UTF-8 at most MOST_BYTES long."""
    sections = [(figure.name, figure.title, _figure(figure)) for figure in figures(evidence)]
    sections.append(("findings", "Findings", _findings(verdict)))
    rows = MOST_ACTIONS
    while True:
        made = _page(evidence, [*sections, ("actions", "Actions", _actions(evidence, rows))], host)
        if len(made.encode()) <= MOST_BYTES or not rows:
            return made
        rows //= 2


def figures(evidence: Evidence) -> tuple[Figure, ...]:
    """The four charts; of what could not be looked at, why."""
    record, journal, look, now_us = evidence.record, evidence.journal, evidence.look, evidence.now_us
    files = () if isinstance(look, Unknown) else tuple(file for file in look.host.files if file.problem is None)
    if isinstance(journal, Unknown):
        boots, intake = _unknown("boots", "Boots", journal), _unknown("intake", "Intake delay", journal)
    else:
        boots = charts.boots(journal.boots, None if isinstance(record, Unknown) else record)
        intake = charts.intake(journal, now_us)
    if isinstance(record, Unknown):
        extents, sizes = _unknown("extents", "Extents", record), _unknown("bytes", "Bytes", record)
    else:
        extents, sizes = growth(record, files, now_us)
    return boots, extents, intake, sizes


def _unknown(name: str, title: str, why: Unknown) -> Figure:
    return Figure(name, title, f"Unknown: {why.why}.")


def _page(evidence: Evidence, sections: Sequence[tuple[str, str, str]], host: str) -> str:
    title = f"The journal of {html(host)}"
    links = "".join(f'<li><a href="#{name}">{head}</a></li>' for name, head, _ in sections)
    body = "".join(
        f'<section aria-labelledby="{name}"><h2 id="{name}">{head}</h2>{text}</section>'
        for name, head, text in sections
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><style>{style.sheet()}</style></head>\n'
        f"<body><header><h1>{title}</h1><p>{_seen(evidence)}</p>"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav></header>\n<main>{body}</main>\n'
        f"<footer><p>Made by journalkeeper {__version__} at {when(evidence.now_us)}; times are local."
        f" {_ignored(evidence)}</p></footer></body></html>\n"
    )


def _seen(evidence: Evidence) -> str:
    """What there is, in one sentence."""
    if isinstance(evidence.look, Unknown):
        return f"The journal files could not be looked at: {html(evidence.look.why)}."
    every = Sums.of(evidence.look.host.files)
    disk, extents = every.known_disk_bytes, counted(every.extents, "extent")
    said = f"{counted(every.files, 'file')} of {format_size(every.size_bytes)}"
    said += f", on disk {UNKNOWN if disk is None else format_size(disk)}"
    return f"{said}, in {extents} where {every.ideal_extents:,} would be ideal, at {when(evidence.now_us)}."


def _ignored(evidence: Evidence) -> str:
    return "" if isinstance(evidence.record, Unknown) else " ".join(map(html, evidence.record.ignored))


def _figure(figure: Figure) -> str:
    parts = [f"<p>{html(figure.said)}</p>"]
    if figure.chart is not None:
        key = "".join(f"<li>{svg.swatch(layer)}{html(name)}</li>" for layer, name in figure.key)
        wide = svg.draw(figure.chart, WIDE).replace("<svg ", '<svg class="wide" ', 1)
        narrow = svg.draw(figure.chart, NARROW).replace("<svg ", '<svg class="narrow" ', 1)
        parts.append(f'<ul class="key">{key}</ul><figure>{wide}{narrow}</figure>')
    parts += [f'<p class="note">{html(note)}</p>' for note in figure.notes]
    if figure.table is not None:
        parts.append(_table(figure.table))
    return "\n".join(parts)


def _table(table: Table) -> str:
    """A table in a box of its own, which alone is scrolled where it is too wide."""
    last = len(table.heads) - 1
    sides = [
        ' class="left long"' if column == last and table.words_last else ' class="left"' if column < table.left else ""
        for column in range(len(table.heads))
    ]
    heads = "".join(f'<th scope="col"{side}>{html(head)}</th>' for head, side in zip(table.heads, sides, strict=True))
    rows = "".join(
        f"<tr>{''.join(f'<td{side}>{html(cell)}</td>' for cell, side in zip(row, sides, strict=True))}</tr>\n"
        for row in table.rows
    )
    caption = html(table.caption)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{caption}"><table><caption>{caption}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>\n{rows}</tbody></table></div>"
    )


def _findings(verdict: Verdict) -> str:
    parts = [_finding(one) for one in verdict.findings] or ["<p>Nothing was found.</p>"]
    parts.append(f"<p>{counted(len(verdict.passed), 'check')} passed, {len(verdict.unknown)} could not be made.</p>")
    if verdict.unknown:
        parts.append(_table(Table("Checks that could not be made", ("Check", "Why"), verdict.unknown, words_last=True)))
    return "\n".join(parts)


def _finding(found: Finding) -> str:
    commands = "\n".join(html(command, LONG) for command in found.remedy)
    facts = ", ".join(f"{name} {_fact(fact)}" for name, fact in found.facts.items())
    parts = [
        f'<article class="finding {found.severity}">',
        f'<h3>{html(found.word)} <span class="word">{found.severity}</span></h3>',
        f"<p>{html(found.sentence, LONG)}</p>",
        f'<p class="note">{html(facts, LONG)}</p>' if facts else "",
        f"<pre><code>{commands}</code></pre>" if commands else "",
        "</article>",
    ]
    return "".join(parts)


def _fact(fact: Fact) -> str:
    if isinstance(fact, list):
        return ", ".join(fact)
    return UNKNOWN if fact is None else f"{fact:,}" if isinstance(fact, int) else str(fact)


def _actions(evidence: Evidence, rows: int) -> str:
    parts = ["<h3>Decided now</h3>", _decided(evidence), "<h3>Done before</h3>"]
    if isinstance(evidence.record, Unknown):
        return "\n".join([*parts, f"<p>Unknown: {html(evidence.record.why)}.</p>"])
    entries = sorted(evidence.record.entries, key=lambda entry: entry.when_us, reverse=True)
    if not entries:
        return "\n".join([*parts, "<p>Nothing was done yet.</p>"])
    newest, older = entries[:rows], entries[rows:]
    if newest:
        parts.append(_table(_each(newest, len(entries))))
    if older:
        parts.append(_table(_by_month(older)))
    reasons = {entry.outcome.reason for entry in entries}
    return "\n".join([*parts, _glossary(reasons)])


def _each(newest: Sequence[Entry], everything: int) -> Table:
    caption = "Every action, the newest first"
    if len(newest) < everything:
        caption = f"The newest {len(newest)} of {everything:,} actions, the newest first"
    rows = tuple(
        (
            when(entry.when_us),
            entry.outcome.action,
            entry.outcome.result,
            entry.outcome.reason,
            f"{entry.outcome.extents_before:,} → {entry.outcome.extents_after:,}",
            format_size(entry.outcome.bytes_written),
            "; ".join(filter(None, (entry.outcome.path, entry.outcome.detail))),
        )
        for entry in newest
    )
    heads = ("Time", "Action", "Result", "Reason", "Extents", "Written", "File")
    return Table(caption, heads, rows, left=4, words_last=True)


def _by_month(older: Iterable[Entry]) -> Table:
    """Sums of what has no row of its own."""
    sums: dict[tuple[str, ...], Counter[str]] = {}
    for entry in older:
        done = entry.outcome
        key = (when(entry.when_us)[:7], done.action.value, done.result.value, done.reason.value)
        sums.setdefault(key, Counter()).update(
            times=1, before=done.extents_before, after=done.extents_after, written=done.bytes_written
        )
    rows = tuple(
        (
            *key,
            f"{one['times']:,}",
            f"{one['before']:,} → {one['after']:,}",
            format_size(one["written"]),
        )
        for key, one in sorted(sums.items(), reverse=True)
    )
    heads = ("Month", "Action", "Result", "Reason", "Times", "Extents", "Written")
    return Table("Older actions, summed up by month", heads, rows, left=4)


def _decided(evidence: Evidence) -> str:
    """What the plan says of every file: actions one by one, those left alone by reason."""
    plan = evidence.plan
    if isinstance(plan, Unknown):
        return f"<p>Unknown: {html(plan.why)}.</p>"
    parts = []
    if plan.actions:
        parts.append(_table(_planned(plan)))
    if plan.skipped:
        parts.append(_table(_left_alone(plan.skipped)))
    if not parts:
        return "<p>There are no journal files.</p>"
    return "\n".join([*parts, _glossary({skip.reason for skip in plan.skipped})])


def _planned(plan: Plan) -> Table:
    rows = tuple(
        (
            one.action,
            one.reason,
            f"{one.extents_before:,} → {one.extents_expected:,}",
            format_size(one.bytes_to_write),
            seconds(read_seconds_saved(one)),
            one.path,
        )
        for one in plan.actions[:MOST_PLANNED]
    )
    todo = counted(len(plan.actions), "action")
    caption = f"{todo} to do; what a cold read takes less is of {READ_IOPS} reads a second"
    if len(rows) < len(plan.actions):
        caption += f", the first {len(rows)}"
    heads = ("Action", "Reason", "Extents", "To write", "Read saved", "File")
    return Table(caption, heads, rows, left=2, words_last=True)


def _left_alone(skipped: Sequence[Skip]) -> Table:
    """How many for which reason, with one file as the example."""
    by_reason: dict[Reason, list[Skip]] = {}
    for skip in skipped:
        by_reason.setdefault(skip.reason, []).append(skip)
    rows = tuple(
        (reason, f"{len(some):,}", "; ".join(filter(None, (some[0].path, some[0].detail))))
        for reason, some in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
    )
    return Table(
        f"{counted(len(skipped), 'file')} left alone", ("Reason", "Files", "For example"), rows, words_last=True
    )


def _glossary(reasons: Iterable[Reason]) -> str:
    """A sentence on each reason that occurs."""
    occurring = set(reasons)
    items = "".join(
        f"<dt>{word}</dt><dd>{html(said, LONG)}</dd>" for word, said in SENTENCES.items() if word in occurring
    )
    return f"<dl>{items}</dl>" if items else ""
