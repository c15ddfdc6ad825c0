# SPDX-License-Identifier: LGPL-2.1-or-later
"""`doctor` and `retention` at the command line: their text, their JSON and their exit statuses."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from journalkeeper.cli import doctor, retention
from journalkeeper.config import files
from journalkeeper.health.evidence import Evidence, Silence, Storage, Unit, Unknown
from journalkeeper.journald import conf
from journalkeeper.model import Reason
from journalkeeper.observe import machine
from tests.adapters.command import Typed
from tests.answers import check
from tests.evidence import archives, evidence, limits, look, recorded
from tests.hosts import file

VOLATILE = Storage("volatile", persistent_directory=True, flushed=True)
HOSTILE = "\x1b[31m</script>\n\udcff" + "a b" * 3000
DAMAGED = look(file(problem=Reason.BAD_HEADER, path=f"/j/{HOSTILE}"))
SILENT = (("systemd-journald.service", Silence.STOPPED),)
Given = Callable[[Evidence], None]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Given:
    """Return a function that sets the evidence of the commands; journald's drop-in is below tmp_path."""
    place = str(tmp_path / "journald.conf.d/retention.conf")
    for module in (machine, retention):
        monkeypatch.setattr(module, "RETENTION", place)

    def set_up(found: Evidence) -> None:
        for module in (doctor, retention):
            monkeypatch.setattr(module, "gather", lambda *_: found)

    return set_up


def test_a_healthy_host_is_one_line(given: Given, typed: Typed) -> None:
    given(evidence())
    assert typed("doctor") == (0, f"{len(doctor.DOCTOR_RULES)} checks passed\n", "")


def test_a_finding_is_a_sentence_and_commands(given: Given, typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command has more than 80 columns, and stays one line, to be copied."""
    monkeypatch.setenv("COLUMNS", "80")
    given(evidence(storage=VOLATILE, journal=Unknown("no", needs_root=True), config=Unknown("not looked at")))
    out = (
        "ADVICE: volatile\n"
        "  Storage=volatile keeps messages in memory only: none of them outlives the\n  boot.\n"
        "    mkdir -p /etc/systemd/journald.conf.d\n"
        "    printf '[Journal]\\nStorage=persistent\\n' > /etc/systemd/journald.conf.d/zz-storage.conf\n"
        "    systemctl restart systemd-journald\n"
        "    systemctl restart systemd-journal-flush\n"
        "\n"
        f"{len(doctor.DOCTOR_RULES) - 3} checks passed, 1 suggestion, 1 check needs root (sudo journalkeeper doctor),"
        "\n1 check could not be made:\n"
        "  fragmented: not looked at\n"
    )
    assert typed("doctor") == (0, out, "")


def test_a_wrong_configuration_is_a_finding_and_the_other_checks_are_made(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "wrong.conf").write_text("[Defrag]\nCompress=gzip\n")
    document = typed("doctor", "-j", "--config", str(tmp_path / "wrong.conf"), "-D", str(tmp_path)).document
    (found,) = [one for one in document["findings"] if one["rule"] == "bad-configuration"]
    assert found["sentence"].startswith(f"{tmp_path}/wrong.conf:2: ")
    assert "waits" in {one["rule"] for one in document["unknown"]}


@pytest.mark.parametrize(
    ("found", "words", "status"),
    [
        (evidence(), ["--check"], 0),
        (evidence(look=look(foreign=("/j",))), ["--check"], 0),
        (evidence(look=DAMAGED), ["--check"], 0),
        (evidence(storage=VOLATILE), ["--check"], 0),
        (evidence(look=Unknown("no")), ["--check"], 0),
        (evidence(silent=SILENT), [], 0),
        (evidence(silent=SILENT), ["--check"], 1),
        (evidence(silent=SILENT), ["--check", "-j"], 1),
        (evidence(units=Unknown("no"), service=None), ["--check"], 1),
    ],
)
def test_a_check_fails_without_ok(given: Given, typed: Typed, found: Evidence, words: list[str], status: int) -> None:
    given(found)
    assert typed("doctor", *words).status == status


def test_hostile_names_are_escaped_in_short_lines(given: Given, typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    given(evidence(look=DAMAGED, record=recorded(), units=Unknown("no"), storage=Unknown("no", needs_root=True)))
    said = typed("doctor")
    assert said.status == 0
    assert all(character.isprintable() or character == "\n" for character in said.out)
    lines = [line for line in said.out.splitlines() if not line.startswith("    ")]
    assert max(map(len, lines)) <= 80
    said = typed("doctor", "-j")
    assert (said.out.isascii(), said.out.count("\n")) == (True, 1)
    assert said.document["findings"][0]["facts"]["files"] == [f"/j/{HOSTILE}"]
    check("doctor", said.document)


LONG = look(*archives(ratio=6.4), instances=(limits(),))


def test_retention_shows_the_present_and_the_possible_history(given: Given, typed: Typed) -> None:
    given(evidence(look=LONG))
    said = typed("retention")
    assert said.status == 0
    assert said.words == (
        "SystemMaxUse=512M keeps 2w 2d in 107 MiB of disk space;"
        " SystemMaxUse=1536M and SystemMaxFileSize=160M would keep about 1month 2w in 510 MiB."
    )
    assert not Path(machine.RETENTION).exists()
    document = typed("retention", "-j").document
    check("retention", document)
    assert document["changed"] is False


def test_apply_writes_a_file_once_and_undo_ends_it(given: Given, typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    given(evidence(look=LONG))
    monkeypatch.setattr(conf, "read_settings", lambda: conf.from_assignments(files.parse_file(machine.RETENTION)))
    assert typed("retention", "--apply", "-j").document["changed"] is True
    place = Path(machine.RETENTION)
    assert "SystemMaxUse=1536M\nSystemMaxFileSize=160M\n" in place.read_text()
    assert place.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in place.parent.iterdir()] == [place.name]
    assert typed("retention", "--apply", "-j").document["changed"] is False
    assert typed("retention", "--undo", "-j").document == {"file": str(place), "changed": True}
    assert not place.exists()
    said = typed("retention", "--undo")
    assert said.status == 0
    assert "nothing is undone" in said.words


@pytest.mark.parametrize(
    ("units", "why"),
    [
        (Unknown("there is no system bus"), "the state of journalkeeper's units is unknown: there is no"),
        ((Unit("journalkeeper.service", "inactive", "dead", "enabled"),), "no running unit compresses the archives"),
    ],
)
def test_apply_is_refused_where_nothing_compacts(given: Given, typed: Typed, units: Any, why: str) -> None:
    """Otherwise the journal would fill the larger limit."""
    given(evidence(look=LONG, units=units))
    said = typed("retention", "--apply")
    assert said.status == 1
    assert why in said.err
    assert not Path(machine.RETENTION).exists()


def test_a_file_that_overrides_it_is_an_error(given: Given, typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    given(evidence(look=LONG))
    monkeypatch.setattr("journalkeeper.cli.retention.conf.read_settings", lambda: limits(system_max_use_bytes=5))
    for _ in ("writes the drop-in", "finds it"):
        said = typed("retention", "--apply")
        assert said.status == 1
        assert "a later file sets SystemMaxUse=5" in said.err


def test_an_unknown_retention_is_an_error_with_the_reason(given: Given, typed: Typed) -> None:
    given(evidence(look=look(*archives(1), instances=(limits(),))))
    said = typed("retention")
    assert said.status == 1
    assert "the retention is unknown: it needs 2 compressed archives (so far: 1): try again later" in said.err


def test_another_directory_is_not_applied_to(typed: Typed) -> None:
    said = typed("retention", "--apply", "-D", os.environ["TMPDIR"])
    assert said.status == 2
    assert "leave out -D" in said.err
