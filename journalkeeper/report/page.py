# SPDX-License-Identifier: LGPL-2.1-or-later
"""One self-contained HTML page: no script, no network.

The template is templates/page.html. No text from the disk or the journal reaches it unescaped: the environment escapes
and cuts every value. So the number of rows bounds the size of the page.
"""

from __future__ import annotations

from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from journalkeeper import __version__
from journalkeeper.health.evidence import Evidence, Unknown
from journalkeeper.health.finding import Verdict, shorten
from journalkeeper.model import Reason, Sums
from journalkeeper.model.sentences import describe_outcome
from journalkeeper.model.units import escape, format_size, pluralize, spell_size
from journalkeeper.report import charts
from journalkeeper.report.charts import ChartTable
from journalkeeper.report.text import UNKNOWN, describe_total_saving, format_minute

MARK: Final = '<meta name="generator" content="journalkeeper">'
"""The element of the template by which `report` knows its own page."""

MOST_ACTIONS: Final = 100
"""The most past actions on the page: at most 300 KiB, if markup is escaped in all of their LONG texts."""

LONGEST: Final = 160
LONG: Final = 600
"""The most characters of a name, and of a sentence or a command. A unit's name can have 10 kB."""


def render_page(evidence: Evidence, verdict: Verdict, host: str) -> str:
    """Return the HTML page of `host`, with the newest MOST_ACTIONS past actions."""
    template = _make_environment().get_template("page.html")
    return template.render(**_make_overview(evidence, verdict, host), **_tabulate_past(evidence))


def _make_environment() -> Environment:
    """Return an environment that escapes values, cuts them to LONGEST (filter `long`: LONG); unset ones raise."""

    def escape_and_shorten(value: object, longest: int = LONGEST) -> Markup:
        return value if isinstance(value, Markup) else Markup.escape(shorten(escape(str(value)), longest))

    made = Environment(
        loader=PackageLoader("journalkeeper.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=escape_and_shorten,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["long"] = lambda value: escape_and_shorten(value, LONG)
    made.globals.update(plot_rows=charts.ROWS, pluralize=pluralize, newline=Markup("\n"), version=__version__)
    return made


def _make_overview(evidence: Evidence, verdict: Verdict, host: str) -> dict[str, Any]:
    """Return the template's values but for past actions: summary, total saving, figures, verdict, unknown checks."""
    record = evidence.record
    unknown = tuple((rule, part.why) for rule, part in verdict.unknown)
    counters = None if isinstance(record, Unknown) else record.counters
    return {
        "host": host,
        "now": format_minute(evidence.now_us),
        "seen": _sum_up_files(evidence),
        "said": _describe_verdict(verdict),
        "saving": describe_total_saving(counters) if counters else "",
        "figures": charts.draw_all(evidence),
        "verdict": verdict,
        "unknown_checks": ChartTable("Checks that could not be made", ("Check", "Why"), unknown, words_last=True),
    }


def _describe_verdict(verdict: Verdict) -> str:
    """Return the first problem and the number of others, or the numbers of passed checks, advice and unknown checks."""
    if number := len(verdict.problems):
        more = f" {pluralize(number - 1, 'more problem')} below." if number > 1 else ""
        return f"{verdict.problems[0].sentence}{more}"
    advice = f", {pluralize(len(verdict.findings), 'suggestion')} below" if verdict.findings else ""
    unknown = f", {len(verdict.unknown)} could not be made" if verdict.unknown else ""
    return f"{pluralize(len(verdict.passed), 'check')} passed{advice}{unknown}."


def _sum_up_files(evidence: Evidence) -> str:
    """Return a sentence on the files: number, size, disk space or "unknown", (ideal) extents; or why none is known."""
    if isinstance(evidence.look, Unknown):
        return f"The journal files could not be examined: {evidence.look.why}."
    every = Sums.of(evidence.look.host.files)
    disk, extents = every.disk_bytes, pluralize(every.extents, "extent")
    said = f"{pluralize(every.files, 'file')} of {spell_size(every.size_bytes)}"
    said += f", on disk {UNKNOWN if disk is None else spell_size(disk)}"
    return f"{said}, in {extents} where {every.ideal_extents:,} would be ideal, at {format_minute(evidence.now_us)}."


def _tabulate_past(evidence: Evidence) -> dict[str, Any]:
    """Return the template's values for the newest actions: time, written bytes, sentence, and reasons; or why none."""
    if isinstance(evidence.record, Unknown):
        return {"done": None, "undone": f"Unknown: {evidence.record.why}.", "reasons": ()}
    entries = sorted(evidence.record.entries, key=lambda entry: entry.when_us, reverse=True)
    newest = entries[:MOST_ACTIONS]
    caption = "Every action, the newest first"
    if len(newest) < len(entries):
        caption = f"The newest {len(newest)} of {len(entries):,} actions; `journalkeeper history` shows all"
    rows = tuple(
        (format_minute(entry.when_us), format_size(entry.outcome.bytes_written), describe_outcome(entry.outcome))
        for entry in newest
    )
    done = ChartTable(caption, ("Time", "Written", "Action"), rows, words_last=True) if entries else None
    occurring = {entry.outcome.reason for entry in newest}
    reasons = [reason for reason in Reason if reason in occurring]
    return {"done": done, "undone": "Nothing was done yet.", "reasons": reasons}
