# SPDX-License-Identifier: LGPL-2.1-or-later
"""The Ansible collection as files: in step with the program, and as Ansible's own linters want it.

What it does to hosts is in tests/guest/test_ansible.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from journalkeeper import __version__
from tests import ansible
from tests.adapters.command import ran
from tests.ansible import CHECKOUT, COLLECTION, ROLE, Control, Played, program

PAGE = (COLLECTION / "README.md").read_text()


def regenerate(collection: Path) -> subprocess.CompletedProcess[str]:
    """The check of the generated files in a collection of this checkout's package."""
    environment = {**os.environ, "PYTHONPATH": f"{CHECKOUT}:{CHECKOUT}/configs/man"}
    return ran(sys.executable, collection / "regenerate.py", "--check", env=environment)


def test_what_is_written_from_the_directives_is_what_they_say_today() -> None:
    done = regenerate(COLLECTION)
    assert (done.returncode, done.stdout) == (0, ""), "run configs/ansible/regenerate.py"


@pytest.mark.parametrize("name", ["meta/argument_specs.yml", "defaults/main.yml", "vars/main/directives.yml"])
def test_a_directive_that_differs_is_found(tmp_path: Path, name: str) -> None:
    shutil.copytree(COLLECTION, tmp_path / "collection")
    file = tmp_path / "collection/roles/journalkeeper" / name
    file.write_text(file.read_text().replace("journalkeeper_defrag_compress", "journalkeeper_defrag_pack"))
    done = regenerate(tmp_path / "collection")
    assert (done.returncode, done.stdout) == (1, f"roles/journalkeeper/{name}\n")


def test_the_collection_has_the_programs_version() -> None:
    assert f"\nversion: {__version__}\n" in (COLLECTION / "galaxy.yml").read_text()
    assert f"\n## {__version__}\n" in (COLLECTION / "CHANGELOG.md").read_text()


def test_every_default_is_an_option_and_says_the_same() -> None:
    options = dict(
        re.findall(
            r"(?m)^      (journalkeeper_\w+):\n        type: \w+\n        default: (.*)",
            (ROLE / "meta/argument_specs.yml").read_text(),
        )
    )
    defaults = dict(re.findall(r"(?m)^(journalkeeper_\w+): (.*)", (ROLE / "defaults/main.yml").read_text()))
    assert defaults == options
    assert "journalkeeper_state" in defaults


def pack(checkout: Path, cache: Path) -> dict[str, str]:
    environment = {**os.environ, "XDG_CACHE_HOME": os.fspath(cache)}
    done = ran(sys.executable, ROLE / "files/pack.py", checkout, check=True, env=environment)
    said: dict[str, str] = json.loads(done.stdout)
    return said


def test_the_same_source_packs_to_the_same_bytes_whoever_packs_it_and_when(tmp_path: Path) -> None:
    first = ansible.copy_source(tmp_path / "first")
    second = ansible.copy_source(tmp_path / "second")
    os.utime(second / "README.md", (0, 0))
    (second / "journalkeeper/__pycache__").mkdir()
    (second / "journalkeeper/__pycache__/x.pyc").write_text("")
    one, other = pack(first, tmp_path / "cache"), pack(second, tmp_path / "cache")
    assert one == other
    assert hashlib.sha256(Path(one["path"]).read_bytes()).hexdigest() == one["sha256"]
    (second / "README.md").write_text("other\n")
    third = pack(second, tmp_path / "cache")
    assert third["sha256"] != one["sha256"]
    assert [os.fspath(path) for path in Path(third["path"]).parent.iterdir()] == [third["path"]]


def test_what_is_packed_can_be_uninstalled_from(tmp_path: Path) -> None:
    """The script with which configs/install --uninstall ends stands with the role, of which nothing else is packed."""
    (rest,) = re.findall(r"^rest=(.+)$", (CHECKOUT / "configs/install").read_text(), re.MULTILINE)
    with tarfile.open(pack(CHECKOUT, tmp_path)["path"]) as archive:
        names = archive.getnames()
    assert [name for name in names if name.startswith("configs/ansible")] == [rest]


def test_what_is_no_checkout_is_not_packed(tmp_path: Path) -> None:
    done = ran(sys.executable, ROLE / "files/pack.py", tmp_path)
    assert done.returncode == 1
    assert "is no checkout of journalkeeper: it has no LICENSE" in done.stderr


def test_the_scripts_it_runs_on_hosts_are_sound() -> None:
    for script in ("install.sh", "purge.sh", "uninstall.sh"):
        ran("sh", "-n", ROLE / "files" / script, check=True)


@pytest.fixture
def control(tmp_path: Path) -> Control:
    """A controller of no host, with a copy of the collection: linters write beside what they read."""
    if reason := ansible.missing():
        pytest.skip(reason)
    return Control(tmp_path, {})


def say(control: Control, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """What one of Ansible's programs says of the copy."""
    copy = shutil.copytree(COLLECTION, control.home / "lint")
    return subprocess.run(
        [program(name), *words], cwd=copy, env=control.environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.long
def test_ansible_lint_has_nothing_to_say_in_its_strictest_profile(control: Control) -> None:
    """It takes long because ansible-lint starts Ansible for each file."""
    done = say(control, "ansible-lint", "--offline", "--strict", "--profile", "production", "--nocolor")
    assert done.returncode == 0, done.stdout
    assert "'production' was required, and it passed" in done.stdout


DROPIN = """\
- hosts: localhost
  gather_facts: false
  vars_files:
    - {role}/vars/main/directives.yml
  tasks:
    - ansible.builtin.template:
        src: {role}/templates/dropin.conf.j2
        dest: {home}/dropin.conf
        mode: "0644"
        validate: {home}/journalkeeper check-config --config %s
"""


def write_dropin(control: Control, values: dict[str, object]) -> Played:
    """Render the role's template, judged by check-config alone, as the role's task is."""
    shim = control.home / "journalkeeper"
    shim.write_text(f'#!/bin/sh\nPYTHONPATH={CHECKOUT} exec {sys.executable} -P -m journalkeeper "$@"\n')
    shim.chmod(0o755)
    (control.home / "dropin.yml").write_text(DROPIN.format(role=ROLE, home=control.home))
    return control.play("dropin.yml", "--extra-vars", json.dumps(values))


@pytest.mark.slow
def test_check_config_takes_the_drop_in_and_a_wrong_one_does_not_take_its_place(control: Control) -> None:
    """It takes long because it runs four playbooks."""
    values: dict[str, object] = {"journalkeeper_defrag_compress": "zstd:7", "journalkeeper_defrag_active": False}
    assert write_dropin(control, values).changed == {"localhost": 1}
    written = (control.home / "dropin.conf").read_text()
    assert written.endswith("\n\n[Defrag]\nCompress=zstd:7\nActive=no\n")
    assert write_dropin(control, values).changed == {"localhost": 0}
    done = write_dropin(control, {**values, "journalkeeper_defrag_compress": "brotli"})
    assert "Compress: 'brotli' is not allowed; allowed: no, lzo" in done.said
    assert done.hosts["localhost"].failed == 1
    assert (control.home / "dropin.conf").read_text() == written


def test_yamllint_has_nothing_to_say(control: Control) -> None:
    done = say(control, "yamllint", "--strict", ".")
    assert (done.returncode, done.stdout) == (0, "")


def test_ansible_doc_knows_every_variable(control: Control) -> None:
    done = say(control, "ansible-doc", "--type", "role", "--json", "journalkeeper.journalkeeper.journalkeeper")
    assert done.returncode == 0, done.stdout
    (role,) = json.loads(done.stdout[done.stdout.index("{\n") :]).values()  # a warning may come before
    options = role["entry_points"]["main"]["options"]
    assert {"journalkeeper_state", "journalkeeper_defrag_compress", "journalkeeper_metrics_textfile"} <= options.keys()
    assert all(option["description"] for option in options.values())


def test_the_two_pages_show_the_same_playbook() -> None:
    """Which tests/guest/test_ansible.py runs."""
    blocks = re.findall(r"(?ms)^```yaml\n(.*?)^```$", (CHECKOUT / "README.md").read_text())
    shown = [block for block in blocks if "journalkeeper.journalkeeper" in block]
    (own,) = re.findall(r"(?ms)^```yaml\n(.*?)^```$", PAGE)
    assert set(shown) <= {own}
