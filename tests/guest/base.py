# SPDX-License-Identifier: LGPL-2.1-or-later
"""The root of a small Debian, made once with mmdebstrap and kept as a tarball.

The mirrors, proxies and certificates of the registries come from this machine's own settings.

The tarball is `$XDG_CACHE_HOME/journalkeeper/guest-RELEASE-KEY.tar.zst`, or below
/var/cache; KEY changes with the package list, and the file it replaces is removed.
"""

from __future__ import annotations

import configparser
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

PACKAGES = (
    "systemd-sysv", "libpam-systemd", "dbus", "polkitd",
    "python3", "python3-venv", "python3-systemd", "python3-btrfsutil", "python3-pyinotify", "python3-psutil",
    "python3-jeepney", "python3-jinja2",
    "btrfs-progs", "btrfs-compsize", "acl", "attr", "procps", "e2fsprogs", "sudo", "ca-certificates",
)  # fmt: skip
"""The packages of a host on which journalkeeper is installed, and those that the tests use."""

EXTRA = {
    "bookworm": ("usr-is-merged",),  # and not usrmerge, which brings 55 MB of perl
    "trixie": ("python3-pydantic", "python3-pyasyncore"),  # bookworm's is too old for us; it needs no pyasyncore
    "sid": ("python3-pydantic", "python3-pyasyncore"),
}
SYSTEMD = {"bookworm": 252, "trixie": 257}
"""The reference hosts, each with its systemd. test_sid.py tests sid, which changes every day."""

UNREAD = ("/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/man/*")
"""These 60 MB are left out of the base packages, but not of packages that are installed later."""

TOOLS = {"mmdebstrap": "mmdebstrap", "zstd": "zstd", "tar": "tar", "systemd-nspawn": "systemd-container"}


def cache() -> Path:
    """Return the directory of the tarballs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "/var/cache") / "journalkeeper"


def tarball(release: str) -> Path:
    """Return the tarball of a release's root. Make it if there is none (20 s and 60 MB), and remove older ones.

    Raises: RuntimeError with the last words of mmdebstrap if it fails.
    """
    command = _recipe(release)
    key = hashlib.sha256("\0".join(command).encode()).hexdigest()[:12]
    kept = cache() / f"guest-{release}-{key}.tar.zst"
    cache().mkdir(parents=True, exist_ok=True)
    with (
        (cache() / f"guest-{release}.lock").open("w") as lock,
        tempfile.TemporaryDirectory(prefix="guest-", dir=cache()) as temporary,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may make it
        if kept.exists():
            return kept
        fresh = Path(temporary) / kept.name
        done = subprocess.run([*command, release, fresh, *mirror(release)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"mmdebstrap could not make {release}:\n" + "\n".join(done.stderr.splitlines()[-15:]))
        for stale in cache().glob(f"guest-{release}-*.tar.zst"):
            stale.unlink()
        fresh.rename(kept)
    return kept


def unpack(packed: Path, root: Path) -> None:
    """Unpack a tarball into the empty directory `root`, with this machine's proxies, indexes and certificates."""
    subprocess.run(["tar", "--zstd", "-xpf", packed, "-C", root, "--xattrs", "--acls"], check=True)
    settings = _output("apt-config", "dump").splitlines()
    wanted = [line for line in settings if line.lower().startswith(("acquire::http", "acquire::retries"))]
    (root / "etc/apt/apt.conf.d/80host").write_text("".join(f"{line}\n" for line in wanted))
    (root / "etc/pip.conf").write_text(_pip_settings())
    bundle = Path("/etc/ssl/certs/ca-certificates.crt")
    if bundle.exists():
        shutil.copyfile(bundle, root / bundle.relative_to("/"))


def _recipe(release: str) -> list[str]:
    packages = ",".join((*PACKAGES, *EXTRA[release]))
    return [
        # the caches of the tests' Python are none of the guest's
        "env", "--unset=PYTHONPYCACHEPREFIX",
        "mmdebstrap", "--mode=root", "--format=tar", "--variant=minbase", f"--include={packages}",
        "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
        # a mirror may keep an older sid, whose lists of packages have expired
        *(['--aptopt=Acquire::Check-Valid-Until "false"'] if release == "sid" else []),
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in UNREAD),
        '--customize-hook=rm -f "$1"/etc/dpkg/dpkg.cfg.d/99mmdebstrap',
        '--customize-hook=chroot "$1" useradd --create-home --shell /bin/bash user',
    ]  # fmt: skip


def mirror(release: str) -> list[str]:
    """Return the archive that this machine's apt uses, as a line of sources.list; [] if it uses none of Debian's."""
    listed = _output("apt-get", "indextargets", "--format", "$(REPO_URI) $(ORIGIN) $(LABEL)", "Created-By: Packages")
    for line in listed.splitlines():
        uri, _, whose = line.partition(" ")
        if whose == "Debian Debian":
            return [f"deb {uri} {release} main"]
    return []


def _pip_settings() -> str:
    """Return pip's settings for its index on this machine. The environment overrides the file."""
    words = ("index-url", "extra-index-url", "trusted-host", "proxy", "cert")
    found = configparser.RawConfigParser()
    found.read("/etc/pip.conf")
    settings = {word: found["global"][word] for word in words if found.has_option("global", word)}
    for word in words:
        if value := os.environ.get("PIP_" + word.upper().replace("-", "_")):
            settings[word] = value
    return "[global]\n" + "".join(f"{word} = {value}\n" for word, value in settings.items())


def _output(*argv: str) -> str:
    """Return the output of a command; "" if this machine does not have the command."""
    if shutil.which(argv[0]) is None:
        return ""
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout
