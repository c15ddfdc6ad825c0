# SPDX-License-Identifier: LGPL-2.1-or-later
"""journalkeeper.conf: its directives, their validation, and its files."""

from journalkeeper.config.directives import Budget, Config, Defrag, History, Metrics, Nocow, Watch, Window

__all__ = ["Budget", "Config", "Defrag", "History", "Metrics", "Nocow", "Watch", "Window"]
