# SPDX-License-Identifier: LGPL-2.1-or-later
"""Packages of every kind, built from this checkout: their content, and the output of the lints.

A package holds the files that configs/place writes. tests/guest/test_host.py installs and removes packages.
"""

from __future__ import annotations

import re
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from journalkeeper import __version__
from tests.adapters.command import need, ran

pytestmark = [pytest.mark.slow, pytest.mark.long]

CHECKOUT = Path(__file__).parent.parent.parent
TOOLS = {
    "deb": ("dpkg-buildpackage", "dh", "dh_python3", "lintian"),
    "rpm": ("rpmbuild", "rpmlint"),
    "arch": ("makepkg", "pacman"),
}
DISTRIBUTIONS_OWN = ("/usr/share/doc/", "/usr/share/licenses/", "/usr/share/python3/runtime.d/", "/usr/share/lintian/")


def run(*words: str | Path) -> str:
    return ran(*words, check=True).stdout


def build(kind: str, out: Path) -> Path:
    """Build the packages of a kind and return the directory they are in."""
    need(*TOOLS.get(kind, ()))
    run(CHECKOUT / "configs/packaging/build", kind, out)
    return out


def one(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Return the files that a package must hold."""
    paths = run(CHECKOUT / "configs/place", tmp_path_factory.mktemp("placed"), "--program").splitlines()
    return payload(paths)


def test_all_files_of_the_program_are_placed(placed: set[str]) -> None:
    program = {path for path in (CHECKOUT / "journalkeeper").rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert {f"/usr/share/journalkeeper/{path.relative_to(CHECKOUT)}" for path in program} <= placed


def without_place(path: str) -> str:
    """Return a path as it is in all packages: zsh's functions have two places, a man page is packed or not."""
    path = path.replace("/zsh/site-functions/", "/zsh/vendor-completions/")
    return path.removesuffix(".gz") if path.startswith("/usr/share/man/") else path


def payload(paths: list[str]) -> set[str]:
    """Return those files of a package that are journalkeeper's."""
    whole = (f"/{path.lstrip('./')}" for path in paths if not path.endswith("/"))
    ours = (path for path in whole if not path.startswith(DISTRIBUTIONS_OWN) and path.startswith("/usr/"))
    return {without_place(path) for path in ours if not path.endswith(".pyc")}


@pytest.fixture(scope="module")
def deb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return one(build("deb", tmp_path_factory.mktemp("deb")), "*.deb")


def test_the_deb_holds_the_placed_files(deb: Path, placed: set[str]) -> None:
    files = [line.split()[5] for line in run("dpkg-deb", "--contents", deb).splitlines()]
    assert payload(files) == placed
    assert "./usr/share/doc/journalkeeper/NEWS.gz" in files
    assert run("dpkg-deb", "--field", deb, "Version") == f"{__version__}\n"


def test_the_deb_depends_on_the_libraries_by_debians_names(deb: Path) -> None:
    asked = run("dpkg-deb", "--field", deb, "Depends").strip().split(", ")
    assert {"python3 (>= 3.11)", "python3-systemd", "python3-btrfsutil", "python3-pydantic (>= 2.10)"} <= set(asked)
    assert [name for name in asked if "venv" in name] == []


def test_lintian_reports_nothing(deb: Path) -> None:
    assert run("lintian", "--allow-root", "--pedantic", "--fail-on", "error,warning,pedantic", deb) == ""


def test_the_rpm_holds_the_same_and_rpmlint_reports_nothing(tmp_path: Path, placed: set[str]) -> None:
    folder = build("rpm", tmp_path)
    package = one(folder, "*.noarch.rpm")
    lines = run("rpm", "--query", "--package", "--queryformat", r"[%{FILEMODES:perms} %{FILENAMES}\n]", package)
    assert payload([line.split()[1] for line in lines.splitlines() if line[0] != "d"]) == placed
    asked = run("rpm", "--query", "--package", "--requires", package).splitlines()
    assert {"python3 >= 3.11", "python3-inotify", "python3-pydantic >= 2.10"} <= set(asked)
    said = run("rpmlint", "--config", CHECKOUT / "configs/packaging/rpmlint.toml", package, one(folder, "*.src.rpm"))
    assert "0 errors, 0 warnings" in said


def test_the_package_for_arch_holds_the_same_and_pacman_reads_it(tmp_path: Path, placed: set[str]) -> None:
    """It takes long because makepkg builds the package."""
    package = one(build("arch", tmp_path), "*.pkg.tar*")
    with tarfile.open(package) as archive:
        assert payload([member.name + "/" * member.isdir() for member in archive]) == placed
        info = archive.extractfile(".PKGINFO")
        assert info is not None
        asked = re.findall(r"(?m)^depend = (\S+)$", info.read().decode())
    assert {"python>=3.11", "btrfs-progs", "python-pydantic>=2.10"} <= set(asked)
    said = run("pacman", "--query", "--info", "--file", package)
    assert re.search(rf"Version +: {re.escape(__version__)}-1\n", said)


def make_environment(place: Path) -> Path:
    """Make a virtual environment below `place` without the tests' libraries, and return it."""
    run(Path(sys.base_prefix) / "bin/python3", "-m", "venv", place / "plain")
    return place / "plain"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return one(build("sdist", tmp_path_factory.mktemp("sdist")), "*.tar.gz")


def test_the_sdist_makes_the_wheel_that_the_checkout_makes(sdist: Path, tmp_path: Path) -> None:
    """It takes long because each build makes an environment of its own."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "from")  # noqa: S202 - made here; the filter is of Python 3.11.4
    unpacked = one(tmp_path / "from", "*")
    run(unpacked / "configs/packaging/build", "wheel", tmp_path / "sdists")
    build("wheel", tmp_path / "checkouts")
    wheels = [one(tmp_path / whose, "*.whl") for whose in ("sdists", "checkouts")]
    names = [sorted(zipfile.ZipFile(wheel).namelist()) for wheel in wheels]
    assert names[0] == names[1]
    assert {name.split("/")[0] for name in names[0]} == {"journalkeeper", f"journalkeeper-{__version__}.dist-info"}
    assert f"journalkeeper-{__version__}.dist-info/licenses/LICENSE" in names[0]
    plain = make_environment(tmp_path)
    run(plain / "bin/pip", "install", "--quiet", "--no-deps", wheels[0])
    assert (plain / "bin/journalkeeper").exists()  # it needs the libraries, which --no-deps leaves out
    code = "from journalkeeper import __version__; print(__version__)"
    assert run(plain / "bin/python", "-c", code) == f"{__version__}\n"


def test_pip_installs_the_checkout_and_its_libraries(tmp_path: Path) -> None:
    """README's words for Debian 12 and 13, without the distribution's libraries. It takes long because pip compiles."""
    need("gcc", "pkg-config")
    if ran("pkg-config", "--exists", "libsystemd", "libbtrfsutil").returncode != 0:
        pytest.skip("the headers of libsystemd and libbtrfsutil are not installed")
    plain = make_environment(tmp_path)
    run(plain / "bin/pip", "install", "--quiet", CHECKOUT, "btrfsutil<6.14")
    libraries = "import btrfsutil, jeepney, jinja2, psutil, pydantic, pyinotify, systemd.journal"
    run(plain / "bin/python", "-P", "-c", libraries)
    assert run(plain / "bin/journalkeeper", "--version") == f"journalkeeper {__version__}\n"


def test_a_missing_tool_has_the_command_that_installs_it(tmp_path: Path) -> None:
    for name in ("sh", "sed", "head", "git", "date", "mktemp", "rm", "mkdir", "dirname", "id", "apt-get", "cat"):
        (tmp_path / name).symlink_to(shutil.which(name) or "/bin/true")
    done = ran(CHECKOUT / "configs/packaging/build", "--clean", "deb", tmp_path / "out", env={"PATH": f"{tmp_path}"})
    assert done.returncode == 1
    said = "dpkg-buildpackage is not installed: sudo apt install dpkg-dev debhelper dh-python\n"
    assert done.stderr == said
