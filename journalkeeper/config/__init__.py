# SPDX-License-Identifier: LGPL-2.1-or-later
"""journalkeeper.conf: the directives, their check, and the files that they come from."""

from journalkeeper.config.directives import Config

__all__ = ["Config"]
