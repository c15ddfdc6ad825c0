# SPDX-License-Identifier: LGPL-2.1-or-later
"""journalkeeper.conf: its directives, their validation, and its files."""

from journalkeeper.config.directives import (
    Budget,
    Config,
    Defrag,
    HistorySection,
    Metrics,
    Nocow,
    WatchSection,
    WindowSection,
)

__all__ = ["Budget", "Config", "Defrag", "HistorySection", "Metrics", "Nocow", "WatchSection", "WindowSection"]
