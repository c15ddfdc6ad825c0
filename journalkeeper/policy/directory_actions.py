# SPDX-License-Identifier: LGPL-2.1-or-later
"""Orders: what is done to a whole directory or asked of its journald, and what they make needless.

The one rule: every file still appears once. The file for which journald rotates is the order's,
and the other files that end with it are not rewritten as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from journalkeeper.config import Config
from journalkeeper.model import Action, Host, Order, Reason, Request, Skip, Verb, Window
from journalkeeper.policy import nocow, rotate
from journalkeeper.policy.case import Case
from journalkeeper.policy.rules import vetoes

DESPITE: Final = frozenset({Reason.SHARED, Reason.NO_GAIN, Reason.WINDOW_CLOSED})
"""Reasons not to rewrite a file for which it may be rotated all the same; a rotation asks for its own window."""


class Decided(NamedTuple):
    """Orders, and the actions and skips that are left beside them; `put_off` are actions that pay, but not now."""

    orders: tuple[Order, ...]
    actions: list[Action]
    skipped: list[Skip]
    put_off: list[Action]


def with_orders(
    decided: Decided, cases: Sequence[Case], windows: Sequence[Window], host: Host, asked: tuple[Request, Config]
) -> Decided:
    """Add what shall be done for each instance; nothing for who did not ask for upkeep, or for some files only.

    `windows` are those of the instances of `host`, in their order.
    """
    request, config = asked
    if not request.upkeep or request.paths:
        return decided
    for instance, window in zip(host.instances, windows, strict=True):
        here = [case for case in cases if case.file.path.rpartition("/")[0] == instance.directory]
        files = tuple(case.file for case in here)
        may_end = frozenset(case.file.path for case in here if all(skip.reason in DESPITE for skip in vetoes(case)))
        ordered = sum(order.action is Verb.ROTATE for order in decided.orders)
        decided = _instance(decided, rotate.Question(instance, files, may_end, window, host, request, config, ordered))
    return decided


def _instance(decided: Decided, question: rotate.Question) -> Decided:
    """The order about the directory's attribute, then the first that there is to rotate, or the first reason not to."""
    instance, host = question.instance, question.host
    volume = next((volume for volume in host.volumes if volume.device == instance.device), None)
    attribute = nocow.judge(instance, volume, host, question.config)
    will_be = nocow.makes_nocow(instance, volume) or isinstance(attribute, Order)
    unwanted = isinstance(attribute, Skip) and attribute.reason in nocow.UNWANTED
    answers = (
        rotate.to_apply(question, nocow=will_be and not unwanted),
        rotate.if_cheaper(question, [*decided.actions, *decided.put_off]),
    )
    rotation = next((answer for answer in answers if isinstance(answer, Order)), None)
    reason = next((answer for answer in answers if answer is not None), None)
    said = [answer for answer in (attribute, rotation or reason) if answer is not None]
    decided = Decided(
        (*decided.orders, *(answer for answer in said if isinstance(answer, Order))),
        decided.actions,
        [*decided.skipped, *(answer for answer in said if isinstance(answer, Skip))],
        decided.put_off,
    )
    return decided if rotation is None else _without(decided, rotation, {file.path for file in question.actives})


def _without(decided: Decided, rotation: Order, ended: Iterable[str]) -> Decided:
    """The rest of a plan in which journald rotates: no other work on the files that it ends."""
    goes_with = [
        Skip(action.path, Reason.ROTATION, f"ends with the rotation for {rotation.path.rpartition('/')[2]}")
        for action in decided.actions
        if action.path in ended and action.path != rotation.path
    ]
    return Decided(
        decided.orders,
        [action for action in decided.actions if action.path not in ended],
        [skip for skip in decided.skipped if skip.path != rotation.path] + goes_with,
        [action for action in decided.put_off if action.path not in ended],
    )
