# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs commands in a host by putting words in front of them: nsenter, `guest shell`, chroot.

Standard input and output carry the files, so that whatever can run a shell
there is a connection.
"""

from __future__ import annotations

import shlex
import subprocess

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection import ConnectionBase

DOCUMENTATION = """
name: words
short_description: Run commands in a host by putting words in front of them
description:
  - For hosts on the controller itself, such as containers that have no SSH.
author: The journalkeeper authors
options:
  words:
    description: The program, with its first words, that runs the rest of its words in the host.
    type: list
    elements: str
    required: true
    vars:
      - name: ansible_words
"""


class Connection(ConnectionBase):
    """One host."""

    transport = "words"
    has_pipelining = True

    def _connect(self) -> Connection:
        self._connected = True
        return self

    def close(self) -> None:
        """Nothing was opened."""
        self._connected = False

    def exec_command(
        self,
        cmd: str,
        in_data: bytes | None = None,
        sudoable: bool = True,  # noqa: FBT001, FBT002 - Ansible's signature
    ) -> tuple[int, bytes, bytes]:
        """Run a shell command there."""
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        argv = [*self.get_option("words"), "/bin/sh", "-c", cmd]
        stdin = {"input": in_data} if in_data is not None else {"stdin": subprocess.DEVNULL}
        done = subprocess.run(argv, capture_output=True, check=False, **stdin)
        return done.returncode, done.stdout, done.stderr

    def put_file(self, in_path: str, out_path: str) -> None:
        """Write a file there."""
        super().put_file(in_path, out_path)
        with open(in_path, "rb") as opened:
            self._copy(f"cat >{shlex.quote(out_path)}", stdin=opened)

    def fetch_file(self, in_path: str, out_path: str) -> None:
        """Read a file from there."""
        super().fetch_file(in_path, out_path)
        with open(out_path, "wb") as opened:
            self._copy(f"cat {shlex.quote(in_path)}", stdin=subprocess.DEVNULL, stdout=opened)

    def _copy(self, cmd: str, **streams: object) -> None:
        argv = [*self.get_option("words"), "/bin/sh", "-c", cmd]
        done = subprocess.run(argv, stderr=subprocess.PIPE, check=False, **streams)
        if done.returncode != 0:
            raise AnsibleConnectionFailure(f"{cmd}: {done.stderr.decode(errors='replace').strip()}")
