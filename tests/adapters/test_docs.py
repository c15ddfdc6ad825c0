# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every command in README and the other documents is run by a test; tests/documents.py has who runs which."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from journalkeeper.config import Config, files
from journalkeeper.config.validation import from_assignments
from journalkeeper.model import GIB, JournalFile, Kind, Request, Rotation
from journalkeeper.policy.plan import plan
from tests import documents, hosts
from tests.adapters.command import need, ran
from tests.documents import CHECKOUT, HOW, By, Command, Here, how, in_markdown, in_page, row

README = (CHECKOUT / "README.md").read_text()
BYS = tuple(dict.fromkeys(who for *_, who in HOW if isinstance(who, By)))


def test_every_command_is_run_by_a_test() -> None:
    nobodys = [command for command in documents.commands() if how(command) is None]
    assert nobodys == [], "add a row to HOW in tests/documents.py, and the test that runs it"


def test_every_row_is_needed_by_a_command() -> None:
    needed = {row(command) for command in documents.commands()}
    assert [HOW[number] for number in range(len(HOW)) if number not in needed] == []


@pytest.mark.parametrize("by", BYS, ids=lambda by: f"{by.test} {by.words}")
def test_a_command_that_another_test_runs_is_in_that_test(by: By) -> None:
    assert by.words in documents.plain(by.test)


def test_every_document_was_read() -> None:
    found = {command.document for command in documents.commands()}
    pages = {"journalkeeper.1", "journalkeeper-fleet.7", "journalkeeper-trust.7", "journalkeeper.service.8"}
    assert {"README.md"} | pages <= found
    assert len(documents.commands()) > 50


MARKDOWN = """
```sh
# why
frob --all

the `end`
frob --one   # why
```
```console
$ frob \\
  --two
```
```
journalkeeper frob
said
```
```text
journalkeeper frab
```
Use `sudo journalkeeper frob`, not `journalkeeper` or `extents`.
See `tests/run`, `tests/bench` and `tests/documents.py`.

- a list

  ```sh
  frob
  ```
"""


def test_what_is_a_command_in_a_document_and_that_nobody_runs_those() -> None:
    blocks = ["frob --all", "the `end`", "frob --one", "frob    --two", "journalkeeper frob", "frob"]
    found = list(in_markdown("x.md", MARKDOWN))
    assert [one.text for one in found if one.block] == blocks
    assert [one.text for one in found if not one.block] == ["sudo journalkeeper frob", "tests/run"]
    assert how(found[0]) is None
    page = ".EX\nA=1 sudo journalkeeper x  why\n[Service]\nA=b\n.EE\n`systemctl x` and `systemctl`\n"
    assert [one.text for one in in_page("x.7", page)] == ["A=1 sudo journalkeeper x", "systemctl x"]


@pytest.mark.slow
@pytest.mark.parametrize("command", documents.run_by(Here), ids=lambda command: command.text)
def test_what_is_typed_in_the_checkout_ends_well(command: Command) -> None:
    who = how(command)
    assert isinstance(who, Here)
    need(who.needs)
    done = ran("sh", "-c", command.text.removeprefix("sudo "), cwd=CHECKOUT)
    assert (done.returncode, bool(done.stdout)) == (0, True), done.stderr


BENCHES = [one for one in documents.commands() if one.text.startswith("python -m tests.bench.")]


@pytest.mark.parametrize("command", BENCHES, ids=lambda command: command.text)
def test_a_bench_that_a_page_names_takes_those_words(command: Command) -> None:
    _, _, module, *words = command.text.split()
    known = ran(sys.executable, "-m", module, *words, "--help", check=True, cwd=CHECKOUT).stdout
    assert [word for word in words if word.startswith("--") and word.partition("=")[0] not in known] == []


def test_the_packages_for_pip_alone_are_those_that_the_tests_install() -> None:
    (line,) = [one.text for one in in_markdown("README.md", README) if "apt-get install" in one.text and one.block]
    listed = re.findall(r'"apt-get build"\) echo "(.*?)"', (CHECKOUT / "configs/setup.sh").read_text())[0]
    assert set(line.split()[5:]) == {*listed.split(), "python3-venv"}


# files that pages show


def configuration(place: Path, name: str) -> Config:
    (place / "shown.conf").write_text(documents.configurations()[name])
    return from_assignments(files.parse_file(str(place / "shown.conf")))


@pytest.mark.parametrize("name", documents.configurations())
def test_a_configuration_that_is_shown_is_right(tmp_path: Path, name: str) -> None:
    assert configuration(tmp_path, name) != Config()


def test_the_configuration_for_a_first_look_plans_nothing(tmp_path: Path) -> None:
    config = configuration(tmp_path, "# /etc/journalkeeper.conf.d/50-look-first.conf")
    torn = hosts.extents(9000, per_mib=(200,) * 32)
    files = (hosts.file(path=f"{hosts.DIRECTORY}/a", extents=torn, nocow=True), hosts.file(Kind.ACTIVE, extents=torn))
    limits = {"system_max_use_bytes": 4 * GIB, "system_keep_free_bytes": 0, "system_max_file_size_bytes": GIB // 8}
    born_datacow = hosts.instance(rotatable=True, nocow=True, available_bytes=100 * GIB, **limits)
    host = hosts.host(*files, instances=(born_datacow,))
    done: list[object] = []
    for request in (Request(upkeep=True), Request(archived=False, now=True, upkeep=True, ending=True)):
        without, with_it = (plan(host, request, one) for one in (Config(), config))
        assert any(isinstance(action.target, Rotation) for action in without.actions)
        done += [action for action in without.actions if isinstance(action.target, JournalFile)]
        assert with_it.actions == ()
    assert done
