# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernels of Debian's releases as processes (User Mode Linux), which run this machine's programs.

They have one processor, and neither an I/O throttle, PSI nor ftrace.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.guest import base

HERE = Path(__file__).parent
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
ENTER = """
for place in dev proc host; do mkdir -p "$0/$place"; done
mount --rbind / "$0/host"
mount --bind /dev "$0/dev"
mount --bind /proc "$0/proc"
exec chroot "$0" "$@"
"""


def fetch(release: str) -> Path:
    """Return a directory with the kernel of a release and the libc that it needs; fetch both once (46 MB).

    Raises: RuntimeError with the reason if that is not possible here.
    """
    kept = base.cache() / f"kernel-{release}"
    base.cache().mkdir(parents=True, exist_ok=True)
    with (
        (base.cache() / f"kernel-{release}.lock").open("w") as lock,
        tempfile.TemporaryDirectory(prefix="kernel-", dir=base.cache()) as temporary,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may fetch it
        if kept.exists():
            return kept
        if platform.machine() != "x86_64" or not shutil.which("apt-get"):
            raise RuntimeError("Debian has kernels as processes for x86-64 only, and apt-get fetches them")
        work = Path(temporary)
        (work / "lists/partial").mkdir(parents=True)
        (work / "status").touch()
        line = "".join(base.mirror(release)) or f"deb http://deb.debian.org/debian {release} main"
        (work / "sources").write_text(line.replace("deb ", f"deb [signed-by={KEYS}] ", 1))
        settings = {
            "Dir::Etc::sourcelist": "sources", "Dir::State::lists": "lists", "Dir::Cache": ".",
            "Dir::State::status": "status",
        }  # fmt: skip
        apt = ["apt-get", "-qq", "-o", "Dir::Etc::sourceparts=/dev/null", "-o", "Acquire::Languages=none"]
        apt += ["-o", "APT::Sandbox::User=root", "-o", "Acquire::Check-Valid-Until=false"]
        apt += [word for name, place in settings.items() for word in ("-o", f"{name}={work / place}")]
        for words in ("update", "download user-mode-linux libc6"):
            done = subprocess.run([*apt, *words.split()], cwd=work, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise RuntimeError(f"apt-get {words} for {release}: {done.stderr.strip()[-300:]}")
        root = work / "root"
        for package in work.glob("*.deb"):
            subprocess.run(["dpkg-deb", "--extract", package, root], check=True)
        for name in ("lib", "lib64"):
            if not (root / name).exists():
                (root / name).symlink_to(f"usr/{name}")
        root.rename(kept)
    return kept


def run(root: Path, checkout: Path, words: Sequence[str], scratch: Path, *, timeout_s: float) -> str:
    """Boot the kernel, run the words in the checkout, and return what they wrote. They may take 3 GiB of memory.

    `scratch` is a directory for the volume of /scratch.
    """
    volume = scratch / "volume.img"
    with volume.open("wb") as file:
        file.truncate(24 << 30)
    place = scratch / "words"
    place.mkdir()
    (place / "words").write_text(f"{shlex.join(words)}\n")
    subprocess.run(["mkfs.ext4", "-q", "-F", "-d", place, volume], check=True)
    (modules,) = (root / "usr/lib/uml/modules").iterdir()
    argv = [
        "unshare", "--mount", "--propagation", "private", "sh", "-euc", ENTER, f"{root}",
        "/usr/bin/linux.uml", f"umid=journalkeeper-{os.getpid()}", "mem=3G", f"ubd0=/host{volume}",
        "rootfstype=hostfs", "rootflags=/host", "ro", "quiet",
        f"init={HERE / 'kernel-init'}", "con=null", "con0=null,fd:1",
        f"CHECKOUT={checkout}", f"MODULES={modules}",
    ]  # fmt: skip
    environment = {**os.environ, "TMPDIR": "/host/dev/shm", "HOME": f"/host{scratch}", **_overlay_registers(scratch)}
    with (
        (scratch / "said").open("w+b") as said,
        subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment) as kernel,
    ):
        try:
            kernel.wait(timeout_s)
        except subprocess.TimeoutExpired:
            said.write(f"no end after {timeout_s:g} s\n".encode())
        finally:
            kernel.terminate()  # after a SIGKILL its processes would go on
        kernel.wait()
        said.seek(0)
        return said.read().decode(errors="replace").replace("\r", "")


def _overlay_registers(scratch: Path) -> dict[str, str]:
    """Return the environment in which kernels before 7 run on a processor with AMX; see xstate.c."""
    if " amx_tile" not in Path("/proc/cpuinfo").read_text():
        return {}
    library = scratch / "xstate.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, HERE / "xstate.c"], check=True)
    return {"LD_PRELOAD": f"/host{library}"}
