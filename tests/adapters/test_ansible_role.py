# SPDX-License-Identifier: LGPL-2.1-or-later
"""The files of the Ansible collection agree with the program and satisfy Ansible's own linters.

tests/guest/test_ansible.py runs the role on hosts.
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

from tests import ansible
from tests.adapters.command import ran
from tests.ansible import CHECKOUT, COLLECTION, ROLE, Control, Played, program


def test_the_generated_files_are_up_to_date() -> None:
    environment = {**os.environ, "PYTHONPATH": f"{CHECKOUT}:{CHECKOUT}/configs/man"}
    done = ran(sys.executable, COLLECTION / "regenerate.py", "--check", env=environment)
    assert (done.returncode, done.stdout) == (0, ""), "run configs/ansible/regenerate.py"


def pack(checkout: Path, cache: Path) -> dict[str, str]:
    environment = {**os.environ, "XDG_CACHE_HOME": os.fspath(cache)}
    done = ran(sys.executable, ROLE / "files/pack.py", checkout, check=True, env=environment)
    return dict(json.loads(done.stdout))


def test_the_same_source_packs_to_the_same_bytes_on_every_controller(tmp_path: Path) -> None:
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


def test_the_packed_source_can_uninstall(tmp_path: Path) -> None:
    """The script with which configs/install --uninstall ends stands with the role, of which nothing else is packed."""
    (rest,) = re.findall(r"^rest=(.+)$", (CHECKOUT / "configs/install").read_text(), re.MULTILINE)
    with tarfile.open(pack(CHECKOUT, tmp_path)["path"]) as archive:
        names = archive.getnames()
    assert [name for name in names if name.startswith("configs/ansible")] == [rest]


@pytest.fixture
def control(tmp_path: Path) -> Control:
    """A controller without hosts."""
    if reason := ansible.missing():
        pytest.skip(reason)
    return Control(tmp_path, {})


def run_on_copy(control: Control, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run one of Ansible's programs in a copy of the collection, because linters write next to what they read."""
    copy = shutil.copytree(COLLECTION, control.home / "lint")
    return subprocess.run(
        [program(name), *words], cwd=copy, env=control.environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.long
def test_ansible_lint_passes_in_its_strictest_profile(control: Control) -> None:
    """It takes long because ansible-lint starts Ansible for each file."""
    done = run_on_copy(control, "ansible-lint", "--offline", "--strict", "--profile", "production", "--nocolor")
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
    """Render the role's template as the role's task does, without the host's other files."""
    shim = control.home / "journalkeeper"
    shim.write_text(f'#!/bin/sh\nPYTHONPATH={CHECKOUT} exec {sys.executable} -P -m journalkeeper "$@"\n')
    shim.chmod(0o755)
    (control.home / "dropin.yml").write_text(DROPIN.format(role=ROLE, home=control.home))
    return control.play("dropin.yml", "--extra-vars", json.dumps(values))


ROLE_ALONE = """\
- hosts: localhost
  connection: local
  gather_facts: false
  roles: [journalkeeper.journalkeeper.journalkeeper]
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value", "refusal"),
    [
        ("journalkeeper_defrag_compres", "none", "The role has no variable journalkeeper_defrag_compres: correct the"),
        ("journalkeeper_Mode", "none", "The role has no variable journalkeeper_Mode: correct the spelling"),
        ("journalkeeper_metrics_textfile", "/x\nExecStartPre=/evil", "has more than one line"),
        ("journalkeeper_mode", "none", ""),
    ],
)
def test_the_role_refuses_a_misspelt_variable_and_a_directive_of_units_in_a_second_line(
    control: Control, name: str, value: str, refusal: str
) -> None:
    """Without a tag of the role, it only asks for what it needs."""
    (control.home / "site.yml").write_text(ROLE_ALONE)
    values = json.dumps({name: value, "journalkeeper_source": "/nowhere", "journalkeeper_status": {}})
    played = control.play("site.yml", "--extra-vars", values, "--tags", "nothing")
    assert (played.status == 0) is (not refusal), played.said
    assert refusal in " ".join(played.said.split())


@pytest.mark.slow
def test_check_config_accepts_the_drop_in_and_a_wrong_one_does_not_replace_it(control: Control) -> None:
    """A YAML 1.1 `no` is False, a number is a number, and a path may contain blanks. Playbooks take long."""
    values: dict[str, object] = {
        "journalkeeper_watch_directories": ["/var/log/journal", "/srv/other logs"],
        "journalkeeper_defrag_compress": "zstd:7",
        "journalkeeper_defrag_active": False,
        "journalkeeper_defrag_min_extents": 64,
        "journalkeeper_history_keep_sec": None,
        "journalkeeper_metrics_textfile": "",
    }
    assert write_dropin(control, values).changed == {"localhost": 1}
    written = (control.home / "dropin.conf").read_text()
    watch, defrag = "Directories=/var/log/journal '/srv/other logs'", "Compress=zstd:7\nActive=no\nMinExtents=64"
    assert written.endswith(f"\n\n[Watch]\n{watch}\n\n[Defrag]\n{defrag}\n")
    done = write_dropin(control, {**values, "journalkeeper_defrag_compress": "brotli"})
    assert "Compress: 'brotli' is not allowed; allowed: no, lzo" in done.said
    assert done.failed == {"localhost": 1}
    for text in ("1s\n[Defrag]\nArchived=no", "1s\\"):
        second_line = {**values, "journalkeeper_watch_settle_sec": text}
        assert "a value has one line" in write_dropin(control, second_line).said
    assert (control.home / "dropin.conf").read_text() == written


def test_yamllint_passes(control: Control) -> None:
    done = run_on_copy(control, "yamllint", "--strict", ".")
    assert (done.returncode, done.stdout) == (0, "")
