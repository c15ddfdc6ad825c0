# SPDX-License-Identifier: LGPL-2.1-or-later
"""Decide on the attribute of each directory and on a rotation by its journald, and which files that ends.

Every file still appears once. A rotation is listed under the file that it is made for, and the other files that it ends
are not rewritten.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from journalkeeper.config import Config
from journalkeeper.model import Action, Host, JournalFile, Reason, Request, Skip, Verb, Window
from journalkeeper.policy import nocow, rotate
from journalkeeper.policy.case import Case
from journalkeeper.policy.rules import vetoes

DESPITE: Final = frozenset({Reason.SHARED, Reason.NO_GAIN, Reason.WINDOW_CLOSED})
"""Reasons not to rewrite a file that do not prevent its rotation. A rotation checks its window itself."""


def directory_actions(
    proposed: Sequence[Action],
    cases: Sequence[Case],
    windows: Sequence[Window],
    host: Host,
    *,
    request: Request,
    config: Config,
) -> list[Action | Skip]:
    """Return the actions on the directory of each instance, and the reasons against others.

    The list is empty if the request does not include upkeep or names paths. `proposed` are the actions on files, and
    `windows` those of the instances of `host`, in their order.
    """
    answers: list[Action | Skip] = []
    if not request.upkeep or request.paths:
        return answers
    below: dict[str, list[Case]] = {}
    for case in cases:
        below.setdefault(case.file.directory, []).append(case)
    for instance, window in zip(host.instances, windows, strict=True):
        here = below.get(instance.directory, [])
        files = tuple(case.file for case in here)
        actives = (case for case in here if rotate.is_rotatable(case.file))
        may_end = frozenset(case.file.path for case in actives if all(skip.reason in DESPITE for skip in vetoes(case)))
        planned = sum(isinstance(answer, Action) and answer.action is Verb.ROTATE for answer in answers)
        answers += _decide(rotate.Question(instance, files, may_end, window, host, request, config, planned), proposed)
    return answers


def _decide(question: rotate.Question, proposed: Sequence[Action]) -> list[Action | Skip]:
    """Return the answer about the attribute, then the first wanted rotation or the first reason against one."""
    instance, volume = question.instance, question.volume
    attribute = nocow.decide(instance, volume, question.host, question.config)
    will_be = nocow.makes_nocow(instance, volume) or isinstance(attribute, Action)
    unwanted = isinstance(attribute, Skip) and attribute.reason in nocow.UNWANTED
    answers = (
        rotate.rotate_into_nocow(question, nocow=will_be and not unwanted),
        rotate.rotate_if_cheaper(question, proposed),
    )
    rotation = next((answer for answer in answers if isinstance(answer, Action)), None)
    reason = next((answer for answer in answers if answer is not None), None)
    return [answer for answer in (attribute, rotation or reason) if answer is not None]


def map_ended_files(actions: Iterable[Action], files: Iterable[JournalFile]) -> dict[str, str]:
    """Map each of `files` that a rotation among `actions` ends to the path that the rotation is listed under."""
    rotations = {action.target.directory: action.path for action in actions if action.action is Verb.ROTATE}
    return {
        file.path: rotations[file.directory]
        for file in files
        if rotate.is_rotatable(file) and file.directory in rotations
    }
