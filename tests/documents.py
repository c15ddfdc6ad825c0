# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every command that a document shows, and which test runs it.

A command that no row of HOW knows is a failure, and so is a row that no command
needs. A row says who runs it: `Typed` at a journal of its own, `OnGuest` on a booted host,
`Here` in the checkout, or `By` a test of its own, which must have the words in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).parent.parent

PROGRAMS = frozenset(
    {
        *("ansible-galaxy", "ansible-playbook", "apt-get", "btrfs", "busctl", "curl", "dmesg", "gdbus", "git", "grep"),
        *("journalctl", "journalkeeper", "jq", "molecule", "pip", "promtool", "python", "python3", "sh", "sudo"),
        *("systemctl", "systemd-analyze"),
    }
)
"""What a command begins with; or it is an executable file of the checkout, or below ~."""

FENCE = re.compile(r"(?ms)^ *```([^\n]*)\n(.*?)^ *```$")
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
SHELL = frozenset({"sh", "bash", "console"})
ASSIGNMENT = re.compile(r"\w+=\S*")
REMARK = re.compile(r" +# .*$")
REMARK_IN_PAGE = re.compile(r" {2,}(?![^']*' ).*$| +# .*$")


class Command(NamedTuple):
    """One command as a document has it, on one line."""

    document: str
    text: str
    block: bool


class Typed(NamedTuple):
    """Run as it stands where /var/log/journal is a test's own journal (tests/btrfs/test_docs.py)."""


class OnGuest(NamedTuple):
    """Run as it stands on a booted host with the service (tests/guest/test_docs.py); it ends with one of `status`."""

    status: tuple[int, ...] = (0,)


class Here(NamedTuple):
    """Run as it stands in the checkout (tests/adapters/test_docs.py); `needs` is a program that may be missing."""

    needs: str = "sh"


class By(NamedTuple):
    """Run by another test, in the file `test`; `words` are in it, commas and quotes apart."""

    test: str
    words: str


How = Typed | OnGuest | Here | By

README, FIGURES = r"README\.md .*", r"journalkeeper-figures\.7 .*"
HOW: tuple[tuple[str, str, How], ...] = (
    # README: what sets up a machine
    (README, r"sudo tests/try", By("tests/btrfs/test_try.py", "tests/try")),
    (README, r"(sudo )?configs/install( --uninstall)?", OnGuest()),
    (README, r"sudo apt-get install .*gcc pkg-config", By("tests/fresh-root", "script= $ commands Install.*")),
    (README, r"python3 -m venv ~/journalkeeper", By("tests/test_install.py", "-m venv plain")),
    (README, r"~/journalkeeper/bin/pip .*", By("tests/test_install.py", "*pip CHECKOUT btrfsutil<6.14")),
    (README, r"~/journalkeeper/bin/.* --version", By("tests/test_install.py", "bin/journalkeeper --version")),
    (README, r"configs/man/make DIR", By("tests/adapters/test_man.py", "configs/man/make")),
    # README: tests and benches
    (README, r"(sudo )?tests/run( --fast| --all)?", By(".ci/run", "tests/run")),
    (README, r"sudo sh -c 'findmnt .*", OnGuest()),
    # the page of figures
    (FIGURES, r"configs/packaging/build deb OUT", By("tests/adapters/test_packages.py", "configs/packaging/build")),
    (FIGURES, r"configs/install --root DIR", By("tests/adapters/test_install_script.py", "--root")),
    (FIGURES, r"python -m tests\.bench\..*", By("tests/adapters/test_docs.py", "def test_a_bench_that_a_page_names")),
    (FIGURES, r"btrfs filesystem defragment .*", By("tests/bench/archive.py", "btrfs filesystem defragment")),
    # pages that have a test of their own for all that they show
    (
        r"journalkeeper-trust\.7 .*",
        r"(sudo )?python -m tests\.trust.*",
        By("tests/trust/test_suite.py", "-m tests.trust"),
    ),
    (
        r"journalkeeper-trust\.7 prose",
        r"python -m pytest tests/.* -k \w+",
        By("tests/trust/test_suite.py", "-m pytest"),
    ),
    (
        r"journalkeeper\.1 block",
        r".*",
        By("tests/btrfs/test_man_examples.py", "commands make tmp_path / made / PAGES 0"),
    ),
    (
        r"(configs/ansible/)?README\.md .*",
        r"ansible-(galaxy|playbook) .*",
        By("tests/guest/test_ansible.py", "COMMANDS.splitlines"),
    ),
    (r"configs/ansible/README\.md .*", r"molecule test", By("tests/guest/test_ansible.py", "molecule test")),
    # any page
    (r".*", r"promtool .*", Here("promtool")),
    (r".*", r"(sudo )?busctl monitor .*", OnGuest((124,))),  # it goes on until timeout(1) ends it
    (r".*", r"(sudo )?systemctl status .*", OnGuest((0, 3))),  # 3: one of the units is not active
    (r".*", r"(sudo )?(busctl|systemctl|systemd-analyze|journalctl|btrfs|dmesg)\b.*", OnGuest()),
    (r".*", r"(sudo )?journalkeeper retention.*", By("tests/guest/test_host.py", "journalkeeper retention")),
    (r".*", r"sudo journalkeeper lab compare .*", By("tests/btrfs/test_lab_compare.py", "journalkeeper lab compare")),
    (r".*", r"(\w+=\S+ )*(sudo )?journalkeeper .*", Typed()),
)
"""Patterns of a document's name with "block" or "prose", and of a command, in the order in which they are tried."""


def commands() -> list[Command]:
    """Every command of every document, each once for a document."""
    found = [
        one for path in sorted(markdown()) for one in in_markdown(str(path.relative_to(CHECKOUT)), path.read_text())
    ]
    for template in sorted((CHECKOUT / "configs/man").glob("*.in")):
        found += in_page(template.name.removesuffix(".in"), template.read_text())
    return list(dict.fromkeys(found))


def markdown() -> Iterator[Path]:
    """The checkout's own .md files."""
    for path in CHECKOUT.rglob("*.md"):
        if not any(part.startswith(".") for part in path.relative_to(CHECKOUT).parts):
            yield path


def in_markdown(name: str, text: str) -> Iterator[Command]:
    """The lines of shell blocks, and what is a command between backticks."""
    for language, body in FENCE.findall(text):
        lines = [REMARK.sub("", line.removeprefix("$ ")) for line in joined(body) if line and line[0] != "#"]
        if language in SHELL:
            yield from (Command(name, line.strip(), block=True) for line in lines)
        else:  # or a block without a language would hide commands
            yield from (Command(name, line, block=True) for line in lines if not language and is_command(line))
    yield from (Command(name, span, block=False) for span in SPAN.findall(FENCE.sub("", text)) if is_command(span))


def in_page(name: str, text: str) -> Iterator[Command]:
    """The lines between .EX and .EE of a template, and what is a command between backticks."""
    for body in re.findall(r"(?ms)^\.EX\n(.*?)^\.EE$", text):
        lines = (REMARK_IN_PAGE.sub("", line) for line in joined(body))
        yield from (Command(name, line, block=True) for line in lines if is_command(line))
    yield from (Command(name, span, block=False) for span in SPAN.findall(text) if is_command(span))


def joined(body: str) -> list[str]:
    """The lines of a block, those that end in a backslash with the next."""
    return body.replace("\\\n", " ").splitlines()


def is_command(text: str) -> bool:
    """Whether somebody would type it: a program with something behind it, or a script of ours."""
    words = text.split()
    while words and (words[0] == "sudo" or ASSIGNMENT.fullmatch(words[0])):
        words = words[1:]
    if not words:
        return False
    script = CHECKOUT / words[0]
    if "/" in words[0] and (words[0].startswith("~/") or (script.is_file() and script.stat().st_mode & 0o111)):
        return True
    return words[0] in PROGRAMS and len(words) > 1


def row(command: Command) -> int | None:
    """Which row of HOW knows a command; None if none does."""
    where = f"{command.document} {'block' if command.block else 'prose'}"
    matches = (re.fullmatch(document, where) and re.fullmatch(pattern, command.text) for document, pattern, _ in HOW)
    return next((number for number, match in enumerate(matches) if match), None)


def how(command: Command) -> How | None:
    """Who runs it; None if nobody."""
    number = row(command)
    return None if number is None else HOW[number][2]


def run_by(kind: type[How]) -> list[Command]:
    """The commands that a kind of row is responsible for, each text once."""
    mine = {command.text: command for command in commands() if isinstance(how(command), kind)}
    return list(mine.values())


def plain(path: str) -> str:
    """The words of a file of the checkout, quotes, brackets and commas apart."""
    return " ".join(re.sub(r"[\"',()\[\]{}]", " ", (CHECKOUT / path).read_text()).split())


def configurations() -> dict[str, str]:
    """Every block of a page that is a file of ours, by its first line, which is the file's name."""
    texts = [template.read_text() for template in sorted((CHECKOUT / "configs/man").glob("*.in"))]
    bodies = [body for text in texts for body in re.findall(r"(?ms)^\.EX\n(.*?)^\.EE$", text)]
    return {body.splitlines()[0]: body for body in bodies if body.startswith("# /etc/journalkeeper.conf")}
