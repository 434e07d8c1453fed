"""Writes into each SlicePolicy's status whether it is in force, and if not, why; and whether the API server holds it
while no webhook answers.

The conditions `Accepted` and `HeldWithoutWebhook` are all we write; they are written when they are not what they should
be, whoever changed them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from gpuslice.kube.backoff import Backoff
from gpuslice.kube.errors import ApiError, UnreachableError
from gpuslice.kube.events import Recorder, Regarding
from gpuslice.kube.watching import Watch
from gpuslice.policies import schema, stored_policies
from gpuslice.policies.stored_policies import SLICE_POLICIES, Condition, ParsedPolicy, StoredPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuslice.kube.api import Api
    from gpuslice.kube.store import Key

ACCEPTED: Final = "Accepted"
HELD_WITHOUT_WEBHOOK: Final = "HeldWithoutWebhook"
_LONGEST_MESSAGE: Final = 4096


@dataclass(frozen=True, slots=True)
class FollowedPolicy:
    """A policy as it is now, and what its status says of it."""

    parsed: ParsedPolicy
    conditions: tuple[Condition, ...]


class PolicyStatus:
    """Follows all policies and answers each."""

    def __init__(self, api: Api, recorder: Recorder) -> None:
        #: Whether the API server holds a policy while no webhook answers. None: nobody here knows.
        self.holds: Callable[[ParsedPolicy], bool] | None = None
        self.watch: Final[Watch[StoredPolicy, FollowedPolicy]] = Watch(api, SLICE_POLICIES, StoredPolicy, self._read)
        self.watch.store.listen(self._changed)
        self._api = api
        self._recorder = recorder
        self._waiting: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._log = structlog.get_logger()

    @property
    def counts(self) -> tuple[int, int]:
        """How many are accepted, and how many are not."""
        refused = sum(bool(policy.parsed.complaint) for policy in self.watch.store.values())
        return len(self.watch.store) - refused, refused

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.watch.run())
            await self._answer_all()

    async def _answer_all(self) -> None:
        backoff = Backoff()
        while True:
            await self._wake.wait()
            self._wake.clear()
            for name in list(self._waiting):
                try:
                    await self._answer(name)
                except (ApiError, UnreachableError) as error:
                    self._log.warning("a policy's status is not written; trying again", policy=name, error=str(error))
                    self._wake.set()
                    await backoff.wait()
                else:
                    backoff.reset()

    async def _answer(self, name: str) -> None:
        self._waiting.pop(name, None)
        policy = self.watch.store.get("", name)
        if policy is None:
            return
        current = {each.type: each for each in policy.conditions}
        wanted = {each.type: each for each in self._conditions(policy.parsed, current)}
        if current == current | wanted:
            return
        conditions = list((current | wanted).values())
        try:
            await self._api.merge(SLICE_POLICIES, name, {"status": {"conditions": conditions}}, part="status")
        except ApiError as error:
            if not error.not_found:
                self._waiting[name] = None
                raise
        except UnreachableError:
            self._waiting[name] = None
            raise
        accepted = wanted[ACCEPTED]
        if accepted.status == "False" and accepted != current.get(ACCEPTED):
            self._recorder.record(
                Regarding(
                    api_version=schema.API_VERSION,
                    kind=schema.KIND,
                    name=name,
                    uid=policy.parsed.uid,
                ),
                "Warning",
                accepted.reason,
                "Read",
                accepted.message,
            )

    def look_again(self) -> None:
        """At all of them: what `holds` says may have changed."""
        self._waiting |= {name: None for _, name in self.watch.store}
        self._wake.set()

    def _conditions(self, parsed: ParsedPolicy, current: dict[str, Condition]) -> list[Condition]:
        said = [_accepted(parsed)]
        if self.holds is not None:
            said.append(_held(parsed, held=self.holds(parsed)))
        return [_dated(each, current.get(each.type)) for each in said]

    def _read(self, stored: StoredPolicy) -> FollowedPolicy:
        known = self.watch.store.get("", stored.metadata.name)
        parsed = stored_policies.parse(stored, known.parsed if known is not None else None)
        return FollowedPolicy(parsed, stored.status.conditions)

    def _changed(self, key: Key, _old: FollowedPolicy | None, new: FollowedPolicy | None) -> None:
        if new is not None:
            self._waiting[key[1]] = None
            self._wake.set()


def _accepted(parsed: ParsedPolicy) -> Condition:
    return Condition(
        type=ACCEPTED,
        status="False" if parsed.complaint else "True",
        reason="Refused" if parsed.complaint else "Accepted",
        message=parsed.complaint[:_LONGEST_MESSAGE] or f"{len(parsed.rules)} rules are in force",
        observed_generation=parsed.generation,
    )


def _held(parsed: ParsedPolicy, *, held: bool) -> Condition:
    """Says nothing that changes with other policies or namespaces: it would be written for each of them."""
    refusing = [rule.name for rule in parsed.rules if rule.refuses_unreviewed]
    if not refusing:
        status, reason, message = "False", "Admitted", "while no webhook answers, its pods start as they were written"
    elif not held:
        status, reason, message = "False", "Pending", "the webhook configuration does not say so yet"
    else:
        names = ", ".join(refusing)[:_LONGEST_MESSAGE]
        status, reason = "True", "Refused"
        message = (
            "while no webhook answers, the API server refuses pods that ask for a GPU, in every namespace that these "
            f"rules may be for: {names}"
        )
    return Condition(
        type=HELD_WITHOUT_WEBHOOK,
        status=status,
        reason=reason,
        message=message,
        observed_generation=parsed.generation,
    )


def _dated(wanted: Condition, current: Condition | None) -> Condition:
    """Since when it is so."""
    since = current.last_transition_time if current is not None and current.status == wanted.status else ""
    return msgspec.structs.replace(
        wanted, last_transition_time=since or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    )
