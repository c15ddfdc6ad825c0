# SPDX-License-Identifier: LGPL-2.1-or-later
"""journalkeeper.conf: its directives, their validation, and its files."""

from journalkeeper.config.directives import Config

__all__ = ["Config"]
