# SPDX-License-Identifier: LGPL-2.1-or-later
"""The man pages: well made, complete, and their examples right.

Those of journalkeeper(1) and journalkeeper-commands(1) are run in tests/btrfs/test_man_examples.py.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import schemas
from meanings import describe_directive

from journalkeeper import __version__
from journalkeeper.bus import contract, names, objects
from journalkeeper.cli.parser import COMMANDS, parse, parser
from journalkeeper.config import Config, files
from journalkeeper.config.directives import directives
from journalkeeper.config.validation import from_assignments
from journalkeeper.model import GIB, JournalFile, Kind, Reason, Request, Rotation
from journalkeeper.policy.plan import plan
from journalkeeper.probe import compare
from journalkeeper.service.log import Event, make_fields
from tests import hosts
from tests.adapters.command import need, ran
from tests.adapters.pages import CHECKOUT, PAGES, commands, make, rendered
from tests.unit.test_bus_contract import DOC, shapes

MAIN, COMMANDS_PAGE, CONF, JSON, BUS, FIGURES, FLEET, NEWS, REASONS, TRUST, SERVICE = PAGES
UNITS = [unit for kind in ("service", "timer", "socket") for unit in (CHECKOUT / "units").glob(f"*.{kind}")]
OTHER_NAMES = [*(f"{unit.name}.8" for unit in UNITS if unit.name != "journalkeeper.service"), "journalkeeper.conf.d.5"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def text(made: Path) -> dict[str, str]:
    """Every page as it is read."""
    need("mandoc")
    return {page: rendered(made / page) for page in PAGES}


def test_it_makes_pages_completions_schemas_and_interfaces_and_nothing_else(made: Path) -> None:
    others = {f"schema/{command}.json" for command in schemas.ANSWERS}
    others |= {f"interfaces/{one.name}.xml" for one in (objects.MANAGER, objects.JOB_INTERFACE)}
    completions = {"bash/journalkeeper", "zsh/_journalkeeper", "fish/journalkeeper.fish"}
    found = {path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file()}
    assert found == others | completions | {"doc/NEWS"} | set(PAGES) | {f"man{name[-1]}/{name}" for name in OTHER_NAMES}


def test_a_source_date_makes_the_same_pages_again(tmp_path: Path) -> None:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "86400"}
    for name in ("one", "two"):
        ran(CHECKOUT / "configs/man/make", tmp_path / name, check=True, env=environment)
    for page in PAGES:
        assert (tmp_path / "one" / page).read_bytes() == (tmp_path / "two" / page).read_bytes()
        assert '"1970-01-02"' in (tmp_path / "one" / page).read_text().splitlines()[1]


@pytest.mark.parametrize("page", PAGES)
def test_mandoc_and_man_have_nothing_to_say_against_a_page(made: Path, page: str) -> None:
    need("mandoc", "man", "groff")
    lint = ran("mandoc", "-T", "lint", made / page)
    assert lint.stdout + lint.stderr == ""
    environment = {**os.environ, "MANWIDTH": "80", "MANPAGER": "cat", "LC_ALL": "C.UTF-8"}
    read = ran("man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", made / page, check=True, env=environment)
    assert read.stderr == ""
    assert "\N{HYPHEN}\n" not in read.stdout, "names are not broken"


def test_the_changelog_begins_with_this_version_and_all_of_it_is_a_page(text: dict[str, str]) -> None:
    changelog = (CHECKOUT / ".github/CHANGELOG.md").read_text()
    assert re.findall(r"(?m)^## (\d+\.\d+\.\d+) - ", changelog)[0] == __version__
    headings = set(re.findall(r"(?m)^### (.*)$", changelog))
    assert headings <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}, "https://keepachangelog.com"
    page = set(re.findall(r"\w+", text[NEWS].lower()))
    assert set(re.findall(r"\w+", changelog.lower())) - page == {"changelog"}, "its own heading is the page's title"


def test_every_command_and_option_is_in_the_page(text: dict[str, str]) -> None:
    for command in COMMANDS:
        assert re.search(rf"(?m)^ +{command.name} +[A-Z]", text[MAIN])
        chapter = re.search(rf"(?ms)^   {command.name}$(.*?)(?=^   \w|^\w)", text[COMMANDS_PAGE])
        assert chapter is not None
        below = parser([command.name])._subparsers._group_actions[0].choices[command.name]  # type: ignore[union-attr,index]
        for flag in below._option_string_actions:
            assert re.search(rf"(?m)^ +(-.*, )?{re.escape(flag)}\b", chapter[1] + text[MAIN]), flag
    assert re.search(r"(?m)^ +-V, --version", text[MAIN])


def test_the_main_page_fits_on_ten_screens(made: Path) -> None:
    need("mandoc")
    shown = ran("mandoc", "-T", "utf8", "-O", "width=78", made / MAIN, check=True).stdout
    assert len(shown.splitlines()) <= 10 * 24


def test_every_reason_has_its_sentence(text: dict[str, str]) -> None:
    for reason in Reason:
        assert re.search(rf"(?m)^ +{re.escape(reason)}( |$)", text[REASONS]), reason


def test_every_key_of_the_json_is_in_the_page(text: dict[str, str]) -> None:
    def keys_of(schema: Any) -> set[str]:
        inside = [] if isinstance(schema, str | int) else schema.values() if isinstance(schema, dict) else schema
        own = schema.get("properties", {}) if isinstance(schema, dict) else {}
        return {*own}.union(*map(keys_of, inside))

    keys = {*compare.Row._fields}.union(*(keys_of(schemas.make_answer_schema(command)) for command in schemas.ANSWERS))
    keys |= set(re.findall(r'[{ ]"(\w+)": ', (CHECKOUT / "journalkeeper/cli/lab.py").read_text()))
    assert {"path", "head_time_us", "bytes_to_write", "closes_at_us", "origin", "allowed"} <= keys
    # of the totals only that they are there: they bear the same names; of events that all is said of them, too
    keys -= {"files", "events_oldest_us", "events_complete"}
    assert [key for key in keys if not re.search(rf"\b{key}\b", text[JSON])] == []


def test_every_variable_that_is_read_is_in_a_page(text: dict[str, str]) -> None:
    sources = list((CHECKOUT / "journalkeeper").rglob("*.py"))
    read = {
        name for path in sources for name in re.findall(r'environ(?:\.get\(|\[| )?"?([A-Z][A-Z_]+)"', path.read_text())
    }
    assert {"STATE_DIRECTORY", "NO_COLOR", "JOURNAL_STREAM"} <= read
    assert [name for name in read if name not in text[MAIN] + text[SERVICE]] == []


def test_every_directive_has_its_default_its_range_and_its_reason(text: dict[str, str]) -> None:
    for one in directives():
        chapter = re.search(rf"(?ms)^\[{one.section.upper()}\] SECTION$(.*?)(?=^\S)", text[CONF])
        assert chapter is not None, one.section
        item = re.search(rf"(?ms)^ +{one.spec.name}=(.*?)(?=^ +\w+=$|\Z)", chapter[1])
        assert item is not None, one.spec.name
        said = " ".join(item[1].split())
        for words in (one.spec.allowed, one.default, describe_directive(one)[1]):
            assert words in said, one.spec.name


def test_every_field_and_message_of_the_log_is_in_the_page(text: dict[str, str]) -> None:
    fields = [*make_fields(hosts.outcome("/j/a", detail="in words"))]
    for name in (*fields, "JOURNALKEEPER_LOST", "MESSAGE_ID"):
        assert f"{name}=" in text[SERVICE]
    for event in Event:
        assert re.search(rf"(?m)^ +{event}$", text[SERVICE])


def test_every_member_of_the_interface_and_every_error_is_in_the_page(made: Path, text: dict[str, str]) -> None:
    count = 0
    for file in sorted((made / "interfaces").glob("*.xml")):
        root = ElementTree.parse(file).getroot()  # noqa: S314 - our own file
        for member in (*root.iter("method"), *root.iter("signal"), *root.iter("property")):
            count += 1
            assert re.search(rf"(?m)^ +{member.get('name')}[(:]", text[BUS]), member.get("name")
    assert count > 20
    for _, error in names.ERRORS:
        assert error in text[BUS]


def test_the_installed_xml_says_what_introspection_answers(made: Path) -> None:
    ours = (objects.MANAGER, objects.JOB_INTERFACE)
    for one in ours:
        installed = (made / "interfaces" / f"{one.name}.xml").read_text()
        assert shapes(installed) == shapes(contract.introspection([one], []))
        (interface,) = ElementTree.fromstring(installed)  # noqa: S314 - our own
        for member in (interface, *(member for member in interface if member.tag != "annotation")):
            meaning = member.find(f"annotation[@name='{DOC}']")
            assert meaning is not None, member.get("name")
            assert len(meaning.get("value", "")) > 5, member.get("name")


def test_every_command_has_its_schema_and_that_its_version(made: Path) -> None:
    for name in schemas.ANSWERS:
        schema = json.loads((made / "schema" / f"{name}.json").read_text())
        assert schema == schemas.make_answer_schema(name)
        assert schema["description"].startswith("Version 1. ")


def shown_configurations() -> dict[str, str]:
    """Every block of a page that is a file of ours, by its first line, which is the file's name."""
    texts = [template.read_text() for template in (CHECKOUT / "configs/man").glob("*.in")]
    bodies = [body for text in texts for body in re.findall(r"(?ms)^\.EX\n(.*?)^\.EE$", text)]
    return {body.splitlines()[0]: body for body in bodies if body.startswith("# /etc/journalkeeper.conf")}


def read_configuration(place: Path, name: str) -> Config:
    (place / "shown.conf").write_text(shown_configurations()[name])
    return from_assignments(files.parse_file(str(place / "shown.conf")))


@pytest.mark.parametrize("name", shown_configurations())
def test_a_configuration_that_is_shown_is_right(tmp_path: Path, name: str) -> None:
    assert read_configuration(tmp_path, name) != Config()


def test_the_configuration_for_a_first_look_plans_nothing(tmp_path: Path) -> None:
    config = read_configuration(tmp_path, "# /etc/journalkeeper.conf.d/50-look-first.conf")
    torn = hosts.extents(9000, per_mib=(200,) * 32)
    archive = hosts.file(path=f"{hosts.DIRECTORY}/a", extents=torn, nocow=True)
    limits = {"system_max_use_bytes": 4 * GIB, "system_keep_free_bytes": 0, "system_max_file_size_bytes": GIB // 8}
    born_datacow = hosts.instance(rotatable=True, nocow=True, available_bytes=100 * GIB, **limits)
    host = hosts.host(archive, hosts.file(Kind.ACTIVE, extents=torn), instances=(born_datacow,))
    done: list[object] = []
    for request in (Request(upkeep=True), Request(archived=False, now=True, upkeep=True, ending=True)):
        without, with_it = (plan(host, request, one) for one in (Config(), config))
        assert any(isinstance(action.target, Rotation) for action in without.actions)
        done += [action for action in without.actions if isinstance(action.target, JournalFile)]
        assert with_it.actions == ()
    assert done


README = re.findall(r"(?m)(?:`(?:sudo )?|^sudo )journalkeeper( [^`#\n]+)", (CHECKOUT / "README.md").read_text())


@pytest.mark.parametrize("page", [page for page in PAGES if page not in (FIGURES, NEWS, JSON, REASONS)])
def test_every_example_is_a_command_line_that_makes_sense(made: Path, page: str) -> None:
    found = commands(made / page)
    assert found
    for line in found:
        words = shlex.split(re.split(r" \|+ ", line)[0].removeprefix("sudo "))
        if "journalkeeper" in words:
            own = words[words.index("journalkeeper") + 1 :]
            assert parse(own).command or own == ["--help"]


@pytest.mark.parametrize("words", README)
def test_every_command_of_readme_makes_sense(words: str) -> None:
    assert words.endswith("--help") or parse(shlex.split(words)).command
