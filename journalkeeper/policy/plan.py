# SPDX-License-Identifier: LGPL-2.1-or-later
"""Turn a Host into a Plan: an action or a reason for every file.

Every file of the Host appears exactly once, as an action or as a skip. What the last run left undone comes first, then
the actions with the highest gain per written byte, so that they get a short budget. A rotation is listed under the file
that it is made for, and the other files that it ends are not rewritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Final

from journalkeeper.config import Config
from journalkeeper.model import Action, Host, JournalFile, Plan, Reason, Request, Skip, Verb, Volume
from journalkeeper.model.errors import InternalError, catch_errors
from journalkeeper.model.files import COPIES
from journalkeeper.model.run import LEFT
from journalkeeper.model.units import spell_size
from journalkeeper.policy import deferral, nocow, rotate
from journalkeeper.policy.case import Case, Cases
from journalkeeper.policy.cost import EXPECTED_RATIO, add_savings, propose
from journalkeeper.policy.deferral import AGAIN_US, SOON_US, ignores_budget
from journalkeeper.policy.rules import find_vetoes

PUTTING_OFF = frozenset({Reason.SETTLING, Reason.IN_USE, Reason.WINDOW_CLOSED})
"""Vetoes that end without a change by a user. An action that pays is done after that."""

UNLESS_IDLE: Final = PUTTING_OFF | {Reason.SHARED}
"""Vetoes whose meaning depends on whether an action would pay. Others are reported without asking that."""

FOR_WORK: Final = frozenset({Reason.SHARED, Reason.WINDOW_CLOSED})
"""Vetoes that are reported only if an action would pay."""


def plan(host: Host, request: Request, config: Config) -> Plan:
    """Return the plan for `host`: an action or a skip for each file, first what an earlier run left, then by gain.

    Actions on directories come first. A rotation makes skips (ROTATION) of the actions on its other files, and a limit
    of those beyond it (`_afford`). A rest (`find_rest`) makes skips of all, without `syncs`. Skips are sorted by path.
    """
    cases = Cases(host, request, config)
    judged = [_judge_file(file, cases) for file in host.files]
    file_actions = [action for _, action in judged if action is not None]
    ready = [action for skip, action in judged if action is not None and skip is None]
    answers = _decide_by_instance(file_actions, cases) if request.takes_directories else []
    if rest := deferral.find_rest(host.now_us, request, config, on_battery=host.on_battery):
        held = (_put_off(one, *rest) if isinstance(one, Action) else one for one in (*answers, *ready))
        answers, ready = list(dict.fromkeys(held)), []
    of_directories = [answer for answer in answers if isinstance(answer, Action)]
    rotated = {action.target.directory: action.path for action in of_directories if action.action is Verb.ROTATE}
    ends = {file.path: last for directory, last in rotated.items() for file in cases.list_rotatable(directory)}
    skipped = [skip for skip, _ in judged if skip is not None and ends.get(skip.path) != skip.path]
    skipped += [answer for answer in answers if isinstance(answer, Skip)]
    skipped += [
        action.skip(Reason.ROTATION, f"ends with the rotation for {ends[action.path].rpartition('/')[2]}")
        for action in ready
        if ends.get(action.path, action.path) != action.path
    ]
    worthy = sorted((action for action in ready if action.path not in ends), key=partial(_make_sort_key, host))
    affordable, too_much = _afford(worthy, host, request, config)
    return Plan(
        window={one.instance: one for one in cases.windows.values()},
        actions=tuple(map(add_savings, (*of_directories, *affordable))),
        skipped=tuple(sorted([*skipped, *too_much], key=attrgetter("path"))),
        syncs=() if rest else tuple(instance for instance in host.instances if instance.sync_tells),
    )


def _put_off(action: Action, reason: Reason, detail: str, until_us: int) -> Skip:
    """Return the Skip that delays `action`. A delayed rotation is listed under its directory, without extents."""
    skip = action.skip(reason, detail, until_us, puts_off=True)
    return skip._replace(path=action.target.directory, extents=0) if action.action is Verb.ROTATE else skip


def _decide_by_instance(file_actions: Sequence[Action], cases: Cases) -> list[Action | Skip]:
    """Return the decisions on +C and rotation of each instance; each counts the rotations before it."""
    answers: list[Action | Skip] = []
    for instance in cases.host.instances:
        planned = sum(isinstance(answer, Action) and answer.action is Verb.ROTATE for answer in answers)
        found = _decide_on_directory(rotate.Question(instance, cases, planned), file_actions)
        answers += [one._replace(instance=instance.name) if isinstance(one, Skip) else one for one in found]
    return answers


def _decide_on_directory(question: rotate.Question, file_actions: Sequence[Action]) -> list[Action | Skip]:
    """Return the decisions on +C and rotation, if any: no rotation before +C (STARTING), nor into NOCOW if UNWANTED."""
    instance, cases = question.instance, question.cases
    volume = cases.volumes.get(instance.device)
    attribute = nocow.decide(instance, volume, cases)
    if isinstance(attribute, Skip) and attribute.reason is Reason.STARTING:
        return [attribute]  # and no rotation, which a second one would follow
    mounted_so = volume is not None and "nodatacow" in volume.options
    will_be = instance.nocow or mounted_so or isinstance(attribute, Action)
    unwanted = isinstance(attribute, Skip) and attribute.reason in nocow.UNWANTED
    rotation = rotate.decide_rotation(question, file_actions, nocow=will_be and not unwanted)
    return [answer for answer in (attribute, rotation) if answer is not None]


def _judge_file(file: JournalFile, cases: Cases) -> tuple[Skip | None, Action | None]:
    """Return the decision of `_judge_case`, a Skip with instance and extents. A rule's error is INTERNAL_ERROR."""
    answer = catch_errors(partial(_judge_case, Case(file, cases)))
    if isinstance(answer, InternalError):
        return Skip(file.path, Reason.INTERNAL_ERROR, answer.detail, instance=file.instance), None
    skip, action = answer
    if skip is not None:
        skip = skip._replace(instance=file.instance, extents=file.extents.total)
    return skip, action


def _judge_case(case: Case) -> tuple[Skip | None, Action | None]:
    """Return (None, action) for a rewrite that pays, (skip, action) if `postpone` delays it, or else (skip, None).

    A veto excludes the action; it `puts_off` if all vetoes are temporary. If none pays, that replaces one in FOR_WORK.
    """
    against = find_vetoes(case)
    veto = next(against, None)
    if veto is not None and veto.reason not in UNLESS_IDLE:
        return veto, None
    proposal = propose(case)
    if isinstance(proposal, Skip):
        # A file that needs no work waits neither for a flush nor for the deletion of a snapshot.
        return (proposal if veto is None or veto.reason in FOR_WORK else veto), None
    if veto is not None:
        return veto._replace(puts_off=all(map(_is_temporary, (veto, *against)))), None
    later = deferral.postpone(case)
    return (None if later is None else later._replace(puts_off=True)), proposal


def _is_temporary(skip: Skip) -> bool:
    """Return whether a veto ends without a change by a user. IN_USE without a time never ends: journald was killed."""
    return skip.reason in PUTTING_OFF and not (skip.reason is Reason.IN_USE and skip.until_us is None)


def with_now(made: Plan, host: Host, request: Request, config: Config) -> Plan:
    """Return `made`, the plan for `request`, with `now` set in each skip that would be an action with --now.

    A rotation also counts for a skip of its directory. `now` is False if a skip for the same reason remains.
    """
    at_once = plan(host, request._replace(now=True), config)
    done = {one.path for one in at_once.actions}
    done |= {one.target.directory for one in at_once.actions if not isinstance(one.target, JournalFile)}
    left = {(skip.path, skip.reason) for skip in at_once.skipped}  # a directory has answers about +C and a rotation
    helped = (skip._replace(now=skip.path in done and (skip.path, skip.reason) not in left) for skip in made.skipped)
    return made._replace(skipped=tuple(helped))


def _make_sort_key(host: Host, action: Action) -> tuple[int, float, str]:
    """Put work that an earlier run left first, in the order of LEFT, then the most removed extents per written byte."""
    saved = action.extents_before - action.extents_expected
    left = LEFT.get(host.waiting.get(action.path, ""), len(LEFT))
    return left, -saved / max(1, action.bytes_to_write), action.path


def count_available_bytes(volume: Volume) -> int:
    """Return how many bytes of new data `volume` can still store with its data profile."""
    return volume.free_bytes + volume.unallocated_bytes // COPIES.get(volume.data_profile, 1)


def _afford(actions: list[Action], host: Host, request: Request, config: Config) -> tuple[list[Action], list[Skip]]:
    """Return the actions that fit the day's budget, the quota and the space above KeepFree=, and a skip for each other.

    A request can ignore the budget (`ignores_budget`). Only the skip for BytesPerDay=0 has no time and does not put
    off. A quota counts what is stored. Old extents are not free yet for the next file (fs/btrfs/transaction.c).
    """
    budget = config.budget.bytes_per_day
    left = None if budget is None or ignores_budget(request, budget) else budget - host.written_bytes
    uuids = {volume.device: volume.uuid for volume in host.volumes}
    room = {volume.uuid: count_available_bytes(volume) - config.budget.keep_free_bytes for volume in host.volumes}
    quota = {volume.device: volume.quota_bytes for volume in host.volumes if volume.quota_bytes is not None}
    chosen: list[Action] = []
    skipped: list[Skip] = []
    for action in actions:
        need, device = action.bytes_to_write, action.target.device
        uuid, stored = uuids[device], round(need * (EXPECTED_RATIO if action.compress != "no" else 1))
        if stored > quota.get(device, stored):
            space = f"{spell_size(stored)} are needed, {spell_size(quota[device])} are left to its quota group"
            skipped.append(action.skip(Reason.QUOTA, space, host.now_us + SOON_US, puts_off=True))
        elif need > room[uuid]:
            space = f"{spell_size(need)} are needed, {spell_size(max(0, room[uuid]))} are to spare"
            skipped.append(action.skip(Reason.FREE_SPACE, space, host.now_us + SOON_US, puts_off=True))
        elif budget == 0 and not ignores_budget(request, budget):
            skipped.append(action.skip(Reason.BUDGET, "BytesPerDay=0 allows no rewrite"))
        elif left is not None and need > left:
            money = f"{spell_size(need)} to rewrite, {spell_size(max(0, left))} left of today's budget (BytesPerDay=)"
            skipped.append(action.skip(Reason.BUDGET, money, host.now_us + AGAIN_US, puts_off=True))
        else:
            chosen.append(action)
            room[uuid] -= need
            quota |= {device: quota[device] - stored} if device in quota else {}
            if left is not None:
                left -= need
    return chosen, skipped
