# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every rule of health, in the order of doctor's output: the public functions of the modules of rules."""

from __future__ import annotations

from types import FunctionType, ModuleType
from typing import Final

from journalkeeper.health import journald_rules, service_rules, storage_rules
from journalkeeper.health.finding import Rule


def _list_rules(module: ModuleType) -> tuple[Rule, ...]:
    functions = [one for name, one in vars(module).items() if isinstance(one, FunctionType) and name[0] != "_"]
    return tuple(one for one in functions if one.__module__ == module.__name__)


HEALTH: Final = _list_rules(service_rules)
"""The rules on the service. The first finding in this order is the headline of `status`."""

RULES: Final = (*_list_rules(storage_rules), *_list_rules(journald_rules), *HEALTH)
