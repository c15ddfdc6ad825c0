# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is done to a whole directory or asked of its journald, and which files that ends.

Every file still appears once. The file for which journald rotates is that action's,
and the other files that end with it are not rewritten as well.
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
"""Reasons not to rewrite a file for which it may be rotated all the same; a rotation asks for its own window."""


def directory_actions(
    proposed: Sequence[Action],
    cases: Sequence[Case],
    windows: Sequence[Window],
    host: Host,
    *,
    request: Request,
    config: Config,
) -> list[Action | Skip]:
    """What shall be done for each instance where `proposed` would be done to files, and what speaks against more.

    Nothing for who did not ask for upkeep, or for some files only. `windows` are those of the instances of `host`,
    in their order.
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
        actives = (case for case in here if rotate.ends(case.file))
        may_end = frozenset(case.file.path for case in actives if all(skip.reason in DESPITE for skip in vetoes(case)))
        planned = sum(isinstance(answer, Action) and answer.action is Verb.ROTATE for answer in answers)
        answers += _instance(
            rotate.Question(instance, files, may_end, window, host, request, config, planned), proposed
        )
    return answers


def _instance(question: rotate.Question, proposed: Sequence[Action]) -> list[Action | Skip]:
    """The answer about the directory's attribute, then the first wanted rotation, or the first reason against one."""
    instance, volume = question.instance, question.volume
    attribute = nocow.judge(instance, volume, question.host, question.config)
    will_be = nocow.makes_nocow(instance, volume) or isinstance(attribute, Action)
    unwanted = isinstance(attribute, Skip) and attribute.reason in nocow.UNWANTED
    answers = (rotate.to_apply(question, nocow=will_be and not unwanted), rotate.if_cheaper(question, proposed))
    rotation = next((answer for answer in answers if isinstance(answer, Action)), None)
    reason = next((answer for answer in answers if answer is not None), None)
    return [answer for answer in (attribute, rotation or reason) if answer is not None]


def rotated_away(actions: Iterable[Action], files: Iterable[JournalFile]) -> dict[str, str]:
    """Each of `files` that ends with one of the rotations among `actions`, and the file which that is for."""
    rotations = {action.target.directory: action.path for action in actions if action.action is Verb.ROTATE}
    return {file.path: rotations[file.directory] for file in files if rotate.ends(file) and file.directory in rotations}
