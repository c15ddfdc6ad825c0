# SPDX-License-Identifier: LGPL-2.1-or-later
"""The page of `report` in a real browser, on a phone, a tablet and a desk, by day and by night."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from journalkeeper.health.evidence import Evidence, Intake, Unknown
from journalkeeper.health.finding import Verdict
from journalkeeper.model.manager import Finding, Severity
from journalkeeper.model.units import DAY_US, MINUTE_US
from journalkeeper.report.page import render_page
from tests.adapters.command import ran
from tests.hosts import DIRECTORY, NOW_US
from tests.journal_files import archive_name
from tests.report_data import entry, evidence, journal, nothing, recorded

pytestmark = [pytest.mark.slow, pytest.mark.long]

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("headless_shell")
LONG = f"{DIRECTORY}/{archive_name()}"
ADVICE = Finding("fragmented", Severity.ADVICE, {}, f"{LONG} has 5,992 extents.", (f"journalkeeper defrag {LONG}",))
VERDICT = Verdict((ADVICE, ADVICE._replace(severity=Severity.PROBLEM)), ("a",), (("units", Unknown("u" * 300)),))

FRAME = """<!DOCTYPE html><iframe id=page width={width} height=2000 style="border:0" srcdoc="{page}"></iframe><script>
document.getElementById("page").onload = (event) => {{
  const view = event.target.contentWindow, all = (what) => [...view.document.querySelectorAll(what)].filter(seen);
  const box = (one) => one.getBoundingClientRect(), text = (one) => one.textContent.slice(0, 60);
  const seen = (one) => box(one).width > 0, wide = (one) => one.scrollWidth > one.clientWidth;
  const apart = (a, b) => a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
  const free = all("body *").filter((one) => !one.closest(".scroll")), labels = all("svg text");
  const hinted = (one) => view.getComputedStyle(one).backgroundImage.includes("gradient");
  const found = {{
    width: view.innerWidth,
    dark: view.matchMedia("(prefers-color-scheme: dark)").matches,
    paper: view.getComputedStyle(view.document.body).backgroundColor,
    scrolls: view.document.documentElement.scrollWidth > view.innerWidth,
    beyond: free.filter((one) => box(one).right > view.innerWidth + 0.5 || box(one).left < -0.5).map(text),
    cut: free.filter((one) => !one.closest("svg") && wide(one)).map(text),
    overlaps: labels.flatMap((a, n) =>
      labels.slice(n + 1).filter((b) => !apart(box(a), box(b))).map((b) => [text(a), text(b)])),
    unhinted: all(".scroll").filter((one) => wide(one) && !hinted(one)).map(text),
    labels: labels.length,
    widest: Math.max(0, ...all("svg.chart rect").map((one) => box(one).width / view.innerWidth)),
  }};
  document.body.replaceChildren(document.createComment(JSON.stringify(found)));
}};
</script>"""
"""A frame, because a window of the browser is at least 500 pixels wide. The page has no script."""


def crowd() -> Evidence:
    """Return evidence with one boot, long names, and waits of all lengths."""
    known = journal()
    waits = [Intake(NOW_US - number * MINUTE_US, 59_919 * 7**number % 10**9, "u" * 80) for number in range(400)]
    return evidence(
        journal=known._replace(boots=known.boots[-1:], intake=tuple(waits)),
        record=recorded(days=1)._replace(entries=(entry(NOW_US - DAY_US, path=LONG, detail="d" * 300),)),
    )


def look(tmp_path: Path, some: Evidence, width: int, *, dark: bool) -> dict[str, Any]:
    """Return the measurements of the page in a browser window of this width."""
    text = render_page(some, VERDICT, "host-with-a-long-name." * 4)
    (tmp_path / "page.html").write_text(FRAME.format(width=width, page=html.escape(text)))
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1600,2000"]
    words += [f"--user-data-dir={tmp_path}/browser", f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    environment = {**os.environ, "HOME": f"{tmp_path}", "XDG_CONFIG_HOME": f"{tmp_path}/config"}
    done = ran(str(BROWSER), *words, "--dump-dom", f"file://{tmp_path}/page.html", check=True, env=environment)
    found = re.search(r"<!--(\{.*\})-->", done.stdout, re.DOTALL)
    assert found, done.stdout[-2000:] + done.stderr
    measured: dict[str, Any] = json.loads(found[1])
    return measured


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 800, 1400])
@pytest.mark.parametrize("make", [evidence, crowd, nothing])
def test_nothing_runs_off_the_page_and_no_labels_overlap(tmp_path: Path, make: Any, width: int, *, dark: bool) -> None:
    if BROWSER is None:
        pytest.skip("there is no chromium")
    found = look(tmp_path, make(), width, dark=dark)
    assert (found["width"], found["dark"]) == (width, dark)
    assert found["paper"] == ("rgb(20, 24, 28)" if dark else "rgb(255, 255, 255)")
    faults = {name: found[name] for name in ("scrolls", "beyond", "cut", "overlaps", "unhinted")}
    assert faults == {"scrolls": False, "beyond": [], "cut": [], "overlaps": [], "unhinted": []}
    assert (found["labels"] == 0) == (make is nothing)
    assert found["widest"] < 0.1, "one boot is no giant bar"
