# SPDX-License-Identifier: LGPL-2.1-or-later
"""The fixtures of every test, the rule for skipped tests, and the check that a session leaves nothing behind.

A session that leaves a mount, a loop device or a process behind fails,
and with JOURNALKEEPER_NO_SKIP=1 (as CI runs it) so does a test that was skipped.

Marks say where a test runs (tests/run has the times):

    root    needs root, loop devices and a journald          not in --fast
    guest   needs a booted guest                             not in --fast
    slow    takes longer than all unit tests together        not in --fast
    long    costs more than its share of ten minutes         only in --all

Under pytest-xdist each worker is a session with its own mounts, TMPDIR and tag, and looks for its own leftovers. Tests
run in any order and in any worker, except that the tests of a module with a fixture of module scope stay together
(tests/parallel.py). So no test may use a name that a test of another worker could have (a port, an abstract socket, a
file outside of tmp_path), nor count what the whole machine has. A wait is `tests.patience.eventually`, which does not
fail on a loaded machine. No test asserts a time, except CPU time.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import shutil
import signal
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from journalkeeper.probe import bed as lab
from journalkeeper.probe.bed import Bed
from tests.volumes import why_no_bed

NO_SKIP = "JOURNALKEEPER_NO_SKIP"
TAG = "JOURNALKEEPER_TEST_SESSION"
LOOPS = "/sys/block"
CLEANUP_S = float(os.environ.get("JOURNALKEEPER_CLEANUP_S", "120"))
"""How long the kernel may take to clear a loop device whose last user has just gone."""

find_obstacle = functools.cache(why_no_bed)


def pytest_configure(config: pytest.Config) -> None:
    """Give this session a directory and a tag, by which its leftovers are found."""
    config.addinivalue_line("markers", "slow: takes longer than all unit tests together; not in tests/run --fast")
    config.addinivalue_line("markers", "long: only in tests/run --all")
    config.addinivalue_line(
        "markers", "may_skip: may be skipped in CI too, as what it needs depends on the kernel, the clone or the day"
    )
    if config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.import_plugin("tests.parallel")
    receive_signals()
    for name in ("COLUMNS", "LINES"):  # they would decide how wide tables are
        os.environ.pop(name, None)
    os.environ["SYSTEMCTL_FORCE_BUS"] = "1"  # root would ask this machine's PID 1, whatever bus a test names
    parent = os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    scratch = tempfile.mkdtemp(prefix="journalkeeper-test-", dir=parent)
    os.chmod(scratch, 0o711)  # noqa: S103 - tests that drop their rights must get through
    os.environ["TMPDIR"] = tempfile.tempdir = scratch
    if hasattr(config, "workerinput"):  # what xdist would take is too long for sockets, which have 107 bytes
        config.option.basetemp = os.path.join(scratch, "t")
    os.environ[TAG] = f"{os.environ.get(TAG, '')}.{uuid.uuid4().hex}"  # that of a worker begins with its parent's
    config.add_cleanup(lambda: shutil.rmtree(scratch, ignore_errors=True))
    config.add_cleanup(kill_strays)


def receive_signals() -> None:
    """Let programs that tests start receive the signals that nohup(1) or a shell's `&` has set to be ignored.

    A signal with a handler is not ignored after an execve(2).
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGTERM, interrupt)


def interrupt(*_: object) -> None:
    """End the session as Ctrl-C does: the fixtures end what they started. A second SIGTERM does not disturb them."""
    signal.signal(signal.SIGTERM, lambda *_: None)
    raise KeyboardInterrupt


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Name a failed test at once, with the first line of its reason."""
    if not report.failed:
        return None
    kind = "failed" if report.when == "call" else "error"
    crash = getattr(report.longrepr, "reprcrash", None)
    why = (crash.message if crash else str(report.longrepr)).partition("\n")[0]
    return kind, f"\n{kind.upper()} {report.nodeid}: {why}\n", kind.upper()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs root and loop devices where this machine has none."""
    if item.get_closest_marker("root") and (reason := find_obstacle()):
        pytest.skip(reason)


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def forbid_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skipped test or module into a failed one if JOURNALKEEPER_NO_SKIP=1, unless a user lacks root for it."""
    if os.environ.get(NO_SKIP) == "1" and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        if os.geteuid() != 0 and "root" in str(reason):
            return
        report.outcome = "failed"
        report.longrepr = f"{NO_SKIP}=1, but {report.nodeid} did not run: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Judge a test's skip."""
    report = yield
    if not item.get_closest_marker("may_skip"):
        forbid_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Judge a whole module's skip."""
    report = yield
    forbid_skip(report)
    return report


def leftovers(ours: tuple[str, ...]) -> list[str]:
    """Return the mounts and loop devices of paths that begin with one of `ours`."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = line.split()[4]
        if point.startswith(ours):
            found.append(f"{point} is still mounted")
    for device in Path(LOOPS).glob("loop*"):
        try:
            path = (device / "loop/backing_file").read_text().strip()
        except OSError:
            continue  # attached to nothing
        # attached in another namespace, the path may begin further up
        if any(own in path for own in ours):
            found.append(f"/dev/{device.name} is still attached to {path}")
    return found


def stray_processes() -> dict[int, str]:
    """Return the processes that inherited this session's tag, with a sentence each, without the session itself."""
    tag = f"{TAG}={os.environ[TAG]}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if any(word.startswith(tag) for word in (entry / "environ").read_bytes().split(b"\0")):
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if words:  # a zombie has none: its parent reaps it or ends
                    found[int(entry.name)] = f"process {entry.name} still runs: {words[:100]}"
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # gone meanwhile, or somebody else's
    return found


def kill_strays() -> None:
    """Kill what an interrupted session, or a worker of it, could not end."""
    for pid in stray_processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session", autouse=True)
def _nothing_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail the session's last test if anything of the session outlives it."""
    yield
    ours = (f"{os.environ['TMPDIR']}/", f"{tmp_path_factory.getbasetemp()}/")
    deadline = time.monotonic() + CLEANUP_S
    while (found := [*leftovers(ours), *stray_processes().values()]) and time.monotonic() < deadline:
        time.sleep(0.05)
    if found:
        pytest.fail("this test session left behind:\n" + "\n".join(found), pytrace=False)


@pytest.fixture
def make_bed() -> Iterator[Callable[..., Bed]]:
    """Make beds: `make_bed(*settings, size="1G", options="defaults")`; gone after the test."""
    with ExitStack() as stack:
        yield lambda *settings, **words: stack.enter_context(lab.bed(*settings, **words))


@pytest.fixture
def bed(make_bed: Callable[..., Bed]) -> Bed:
    """One bed whose active file does not rotate by itself."""
    return make_bed("SystemMaxFileSize=128M", "SystemMaxUse=512M")


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[socket.socket]:
    """A journald that takes what its queue holds and reads only if the test does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(os.fspath(tmp_path / "socket"))
        listener.settimeout(60)
        yield listener
