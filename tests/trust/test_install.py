# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a local user can prepare for root's installation: paths, environment, pip's settings, an index."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from journalkeeper import cli
from journalkeeper.cli import program
from tests.adapters.command import need, ran

CHECKOUT = Path(__file__).parents[2]
ROLE = CHECKOUT / "configs/ansible/roles/journalkeeper"
PINS = CHECKOUT / "configs/pins"
EVERYBODYS = re.compile(r"/(?:var/)?tmp/|/dev/shm/|/run/user/")


def pins(name: str) -> dict[str, tuple[str, list[str]]]:
    """The version and hashes of each requirement in a list."""
    text = "\n".join(line for line in (PINS / f"{name}.txt").read_text().splitlines() if not line.startswith("#"))
    found = {}
    for line in text.replace("\\\n", " ").splitlines():
        words = line.split()
        library, version = words[0].split("==")
        found[library] = version, [word.removeprefix("--hash=sha256:") for word in words[1:]]
    return found


# the Ansible role


def test_the_role_uses_no_name_that_a_user_can_take_first() -> None:
    """A directory for temporary files is everybody's: only what mktemp makes there is root's alone."""
    texts = {path: path.read_text() for path in ROLE.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    used = [
        f"{path.relative_to(ROLE)}: {line.strip()}"
        for path, text in texts.items()
        for line in text.splitlines()
        if EVERYBODYS.search(line) and "$(mktemp -d " not in line
    ]
    assert len(texts) > 10
    assert used == []


# the environment of a user, which `sudo -E` and `su -m` pass to root

LAUNCHER = CHECKOUT / "configs/bin/journalkeeper"
SCRIPTS = sorted(
    path for path in (CHECKOUT / "configs").glob("**/*") if path.is_file() and path.read_bytes()[:9] == b"#!/bin/sh"
)
SECURE = """LD_AUDIT LD_LIBRARY_PATH LD_PRELOAD LD_PROFILE LD_DEBUG_OUTPUT"""
"""ld.so(8) reads these before the first line of any script. sudo and su never pass them: the loader removes them."""

MANUALS = {
    "ld.so(8), locale(7), malloc(3), resolver(5), tzset(3)": """
        GCONV_PATH GETCONF_DIR GLIBC_TUNABLES HOSTALIASES LANGUAGE LOCALDOMAIN LOCPATH MALLOC_ARENA_TEST MALLOC_CHECK_
        MALLOC_PERTURB_ MALLOC_TRACE NIS_PATH NLSPATH OUTPUT_CHARSET RESOLV_HOST_CONF RES_OPTIONS TMPDIR TZDIR""",
    "openssl-env(7)": """
        OPENSSL_CONF OPENSSL_CONF_INCLUDE OPENSSL_CONFIG OPENSSL_ENGINES OPENSSL_MODULES OPENSSL_MALLOC_FAILURES
        OPENSSL_TRACE OPENSSL_ia32cap CTLOG_FILE QLOGDIR RANDFILE SSLKEYLOGFILE TSGET""",
    "python(1)": """
        BROWSER PYTHONASYNCIODEBUG PYTHONBREAKPOINT PYTHONCASEOK PYTHONDEBUG PYTHONDEVMODE PYTHONDUMPREFSFILE
        PYTHONEXECUTABLE PYTHONFAULTHANDLER PYTHONHASHSEED PYTHONHOME PYTHONINSPECT PYTHONIOENCODING PYTHONMALLOC
        PYTHONPATH PYTHONPLATLIBDIR PYTHONPYCACHEPREFIX PYTHONSTARTUP PYTHONTRACEMALLOC PYTHONUSERBASE PYTHONUTF8
        PYTHONWARNINGS PYTHON_PERF_JIT_SUPPORT""",
    "pip(1), setuptools": """
        PIP_BUILD PIP_CACHE_DIR PIP_CONFIG_FILE PIP_CONSTRAINT PIP_LOG PIP_PREFIX PIP_PYTHON PIP_REQUIREMENT PIP_ROOT
        PIP_SRC PIP_TARGET PIP_USER DISTUTILS_USE_SDK SETUPTOOLS_USE_DISTUTILS VIRTUAL_ENV NETRC XDG_CONFIG_HOME
        XDG_CONFIG_DIRS XDG_CACHE_HOME XDG_DATA_HOME CC CFLAGS LDFLAGS LDSHARED PKG_CONFIG PKG_CONFIG_PATH""",
    "apt.conf(5), debconf(7), dpkg(1)": """
        APT_CONFIG DEBCONF_DB_OVERRIDE DEBCONF_SYSTEMRC DEBIAN_FRONTEND DPKG_ADMINDIR DPKG_ROOT DPKG_PAGER""",
    "git(1)": """
        GIT_CONFIG_COUNT GIT_CONFIG_GLOBAL GIT_CONFIG_SYSTEM GIT_DIR GIT_EDITOR GIT_EXEC_PATH GIT_EXTERNAL_DIFF
        GIT_PAGER GIT_SSH GIT_SSH_COMMAND GIT_TEMPLATE_DIR GIT_TRACE GIT_WORK_TREE""",
    "less(1), terminfo(5)": """
        EDITOR LESS LESSCHARDEF LESSCLOSE LESSEDIT LESSGLOBALTAGS LESSHISTFILE LESSKEY LESSKEYIN LESSKEY_CONTENT
        LESSKEY_SYSTEM LESSKEYIN_SYSTEM LESSOPEN LESSECHO LESSMETACHARS MANPAGER TERMCAP TERMINFO TERMINFO_DIRS VISUAL
        SYSTEMD_LESS SYSTEMD_PAGERSECURE""",
    "bash(1), dash(1)": """
        BASH_ENV BASH_LOADABLES_PATH BASHOPTS CDPATH ENV EXECIGNORE FPATH GLOBIGNORE HISTFILE IFS INPUTRC MAILPATH
        POSIXLY_CORRECT PROMPT_COMMAND PS1 PS4 SHELL SHELLOPTS TIMEFORMAT HOME""",
    "systemctl(1), journalctl(1)": """
        DBUS_SESSION_BUS_ADDRESS SYSTEMD_CATALOG SYSTEMD_EDITOR SYSTEMD_LOG_TARGET SYSTEMD_UNIT_PATH LISTEN_FDS""",
    "the loader's own": SECURE,
}


@pytest.mark.parametrize(("word", "ignored"), [("daemon", 1), ("defrag", 0)])
def test_only_the_service_ignores_a_hangup_from_its_first_moment(tmp_path: Path, word: str, ignored: int) -> None:
    """Until it has its handler a hangup would end it: 2.6 s on a busy machine."""
    script = tmp_path / "script"
    script.write_text(re.sub("(?m)^exec .*", "exec grep SigIgn: /proc/self/status", LAUNCHER.read_text()))
    done = subprocess.run(
        ["env", "--default-signal=HUP", "sh", script, word], capture_output=True, text=True, check=True
    )
    assert int(done.stdout.split()[1], 16) & 1 == ignored


@pytest.fixture
def poison(tmp_path: Path) -> dict[str, str]:
    """Every variable of the manuals, which names a program or library of a user's, or runs a command that opens one."""
    place, found = tmp_path / "poison", {}
    place.mkdir()
    for name in " ".join(MANUALS.values()).split():
        if name not in SECURE.split():
            (place / name).write_text(f"#!/bin/sh\ncat {place}/ran\n")
            (place / name).chmod(0o755)
            found[name] = f"{place / name}"
    functions = {
        f"BASH_FUNC_{name}%%": f"() {{ cat {place}/function; }}" for name in ("set", "env", "exec", "eval", "id")
    }
    running = {
        "PS4": f"$(cat {place}/trace)",
        "SHELLOPTS": "xtrace",
        "PYTHONWARNINGS": "all:0:antigravity.x:0:0",
        "BROWSER": f"{place}/BROWSER %s",
        "PYTHONINSPECT": "1",
        "TZ": f":{place}/zone",
        "LC_ALL": "xx_XX.POISON",
        "LANG": "xx_XX.POISON",
        "LESSOPEN": f"|{place}/LESSOPEN %s",
    }
    return {**found, **functions, **running}


SHELLS = [pytest.param(["dash"], id="dash"), pytest.param(["bash", "--posix"], id="bash")]


def opened(trace: Path, place: Path) -> list[str]:
    """The system calls that name something below `place`, without the start of the traced program itself."""
    said = [line for line in trace.read_text().splitlines() if f'"{place}' in line or f":{place}" in line]
    return [line for line in said if "execve(" not in line or "= 0" in line]


def run_traced(tmp_path: Path, words: Sequence[str | Path], environment: dict[str, str]) -> list[str]:
    need("strace")
    trace = tmp_path / "trace"
    strace = ["strace", "--follow-forks", "--string-limit=300", "--trace=%file", f"--output={trace}"]
    outside = [f"-E{name}={value}" for name, value in environment.items()]
    done = ran(*strace, *outside, *words)
    assert done.returncode == 0, done.stderr
    return opened(trace, tmp_path / "poison")


@pytest.fixture
def launcher(tmp_path: Path) -> Path:
    """The command, with the Python of these tests."""
    path = tmp_path / "journalkeeper"
    text = LAUNCHER.read_text()
    installed = "/usr/bin/python3 -IB /usr/share/journalkeeper"
    assert installed in text
    path.write_text(text.replace(installed, f"'{sys.executable}' -I -m journalkeeper"))
    return path


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_opens_no_file_that_a_users_variable_names(
    tmp_path: Path, launcher: Path, poison: dict[str, str], shell: list[str]
) -> None:
    """bash itself may look for a locale before the first line."""
    if shell[0] == "bash":
        del poison["LOCPATH"]
    assert run_traced(tmp_path, [*shell, "-p", launcher, "check-config"], poison) == []


@pytest.mark.root
@pytest.mark.parametrize("shell", SHELLS)
def test_the_scripts_open_no_file_that_a_users_variable_names(
    tmp_path: Path, poison: dict[str, str], shell: list[str]
) -> None:
    """/bin/sh runs the rest of a script, whichever shell began it."""
    if shell[0] == "bash":
        del poison["LOCPATH"]
    words = [*shell, "-p", f"{CHECKOUT}/configs/place", f"{tmp_path}/placed", "--python", sys.executable]
    assert run_traced(tmp_path, words, poison) == []


def names_in(text: str) -> set[str]:
    """The variables that a script keeps."""
    (listed,) = re.findall(r"(?s)\bfor name in (.*?); do\n", text)
    return set(listed.replace("\\", " ").split())


def test_no_variable_of_a_manual_is_kept(poison: dict[str, str]) -> None:
    command, scripts = names_in(LAUNCHER.read_text()), names_in((CHECKOUT / "configs/environment.sh").read_text())
    allowed = {"LC_ALL", "LANG", "TZ"}
    assert (command | scripts) & (poison.keys() | set(SECURE.split())) <= allowed
    assert command | {"PATH"} == cli.KEPT, "pip's own script keeps the same"


@pytest.mark.root
def test_the_scripts_of_root_run_with_the_kept_variables_alone(checkout: Path, poison: dict[str, str]) -> None:
    done = as_root(checkout, "/usr/bin/env", {**poison, "PATH": "/poison:/usr/bin:/bin", "http_proxy": "http://one/"})
    found = dict(line.split("=", 1) for line in done.stdout.splitlines())
    allowed = names_in((checkout / "configs/environment.sh").read_text()) | {"PATH", "HOME", "PWD", "OLDPWD", "_"}
    assert found.keys() <= allowed
    assert found["http_proxy"] == "http://one/"
    assert "poison" not in found["PATH"]
    assert found["HOME"] == pwd.getpwuid(0).pw_dir


def test_every_script_clears_its_environment_first() -> None:
    """dpkg and Ansible start the others on a host."""
    made_for_hosts = {LAUNCHER, *ROLE.rglob("*.sh"), *(CHECKOUT / "configs/packaging/deb").iterdir()} & set(SCRIPTS)
    first = {
        path: [line for line in path.read_text().splitlines() if line[:1] not in ("", "#")][:2] for path in SCRIPTS
    }
    late = [
        path.name for path, lines in first.items() if path not in made_for_hosts and "environment.sh" not in lines[1]
    ]
    assert late == []
    assert len(SCRIPTS) - len(made_for_hosts) == 5


@pytest.mark.root
@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("unix:path={root}/socket", True),
        ("unix:path={user}/socket", False),
        ("unix:path={root}/link/socket", False),
        ("unix:path={user}/back/socket", False),
        ("unix:path={root}/socket;unix:path={user}/socket", False),
        ("unixexec:path={user}/program", False),
        ("unix:abstract=one", False),
    ],
)
def test_root_uses_only_a_bus_and_a_state_directory_of_roots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str, kept: bool
) -> None:
    root, user = tmp_path / "root", tmp_path / "user"
    for place in (root, user):
        place.mkdir()
    (root / "link").symlink_to(user)
    (user / "back").symlink_to(root)
    os.chown(user, 12345, 12345)
    address = value.format(root=root, user=user)
    state = address.removeprefix("unix:path=").removesuffix("/socket")
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
    monkeypatch.setenv("STATE_DIRECTORY", state)
    program.ignore_strangers()
    assert ("DBUS_SYSTEM_BUS_ADDRESS" in os.environ) == kept
    assert ("DBUS_SYSTEM_BUS_ADDRESS is ignored" in capsys.readouterr().err) != kept
    assert ("STATE_DIRECTORY" in os.environ) == (kept or ";" in value or "=" in state)


def test_pips_own_script_passes_on_the_kept_variables_alone(
    monkeypatch: pytest.MonkeyPatch, poison: dict[str, str]
) -> None:
    monkeypatch.setattr(os, "environ", dict(poison) | {"TERM": "dumb"})
    cli.clear_variables()
    assert os.environ.keys() == poison.keys() & cli.KEPT | {"TERM"}


# pip


def test_every_library_that_pip_may_fetch_is_pinned_with_what_it_needs() -> None:
    needed = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.split(r"[<>=;]", one)[0] for one in needed}
    nice = re.search(r'"apt-get nice"\) echo "(.*)"', (CHECKOUT / "configs/setup.sh").read_text())
    assert nice is not None
    fetched = {word.split(">=")[0].removeprefix("python3-") for word in nice[1].split()}
    assert fetched <= names
    assert {path.stem for path in PINS.glob("*.txt")} == fetched | {"build"}
    for path in PINS.glob("*.txt"):
        listed = pins(path.stem)
        assert path.stem == "build" or path.stem in listed
        assert [library for library, (_, hashes) in listed.items() if not hashes] == []
        assert all(re.fullmatch("[0-9a-f]{64}", one) for _, hashes in listed.values() for one in hashes)
    assert {"hatchling", "setuptools"} <= set(pins("build"))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy, with one library more that is pinned: pinnedthing, whose pinned content is "good"."""
    copy = tmp_path / "checkout"
    copy.mkdir()
    shutil.copytree(CHECKOUT / "configs", copy / "configs")
    good = wheel(tmp_path / "good", "good = True")
    digest = hashlib.sha256(good.read_bytes()).hexdigest()
    (copy / "configs/pins/pinnedthing.txt").write_text(f"pinnedthing==1.0 --hash=sha256:{digest}\n")
    return copy


def wheel(place: Path, code: str) -> Path:
    """A wheel of pinnedthing with that code."""
    place.mkdir(parents=True)
    path = place / "pinnedthing-1.0-py3-none-any.whl"
    info = "pinnedthing-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {
            "pinnedthing.py": code,
            f"{info}/METADATA": "Metadata-Version: 2.1\nName: pinnedthing\nVersion: 1.0\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/RECORD": "",
        }.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return path


def as_root(checkout: Path, script: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a script of the copy's configs/, as `sudo -E` would with a user's environment."""
    path = checkout / "configs" / "attempt"
    path.write_text(f'set -eu\n. "${{0%/*}}/environment.sh"\ncd "${{0%/*}}/.."\n. configs/setup.sh\n{script}\n')
    words, given = ["sh", "-p", f"{path}"], {"PATH": os.environ["PATH"], **variables}
    return subprocess.run(words, cwd=checkout, env=given, capture_output=True, text=True, check=False)


@pytest.mark.root
@pytest.mark.slow
def test_an_index_that_sends_other_bytes_is_refused(checkout: Path, tmp_path: Path) -> None:
    evil, venv = wheel(tmp_path / "evil", "evil = True"), tmp_path / "venv"
    assert as_root(checkout, f"make_venv {venv}", {}).returncode == 0
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": f"{evil.parent}"}
    refused = as_root(checkout, f"pinned {venv} pinnedthing", index)
    assert refused.returncode != 0
    assert "DO NOT MATCH THE HASHES" in refused.stderr
    done = as_root(checkout, f"pinned {venv} pinnedthing", {**index, "PIP_FIND_LINKS": f"{tmp_path / 'good'}"})
    assert done.returncode == 0, done.stderr
    subprocess.run([venv / "bin/python", "-I", "-c", "import pinnedthing; assert pinnedthing.good"], check=True)


@pytest.mark.root
@pytest.mark.slow
def test_nothing_of_a_users_settings_is_used_by_roots_pip(checkout: Path, tmp_path: Path) -> None:
    """pip.conf can name a log to append to, a directory to write into, even an interpreter to run."""
    home, venv = tmp_path / "home", tmp_path / "venv"
    log, target, marker = tmp_path / "log", tmp_path / "target", tmp_path / "marker"
    settings = home / ".config/pip/pip.conf"
    settings.parent.mkdir(parents=True)
    settings.write_text(f"[global]\nlog = {log}\n[install]\ntarget = {target}\n")
    (home / "evil").mkdir()
    (home / "evil/sitecustomize.py").write_text(f"open({str(marker)!r}, 'w')")
    users = {
        "SUDO_USER": "u",
        "HOME": f"{home}",
        "XDG_CONFIG_HOME": f"{home}/.config",
        "XDG_CONFIG_DIRS": f"{home}/.config",
        "PYTHONPATH": f"{home}/evil",
        "PIP_LOG": f"{log}",
        "PIP_TARGET": f"{target}",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": f"{tmp_path / 'good'}",
    }
    done = as_root(checkout, f"make_venv {venv} pinnedthing && pinned {venv} pinnedthing", users)
    assert [path.name for path in (log, target, marker) if path.exists()] == []
    assert done.returncode == 0, done.stderr
    subprocess.run([venv / "bin/python", "-I", "-c", "import pinnedthing"], check=True)
