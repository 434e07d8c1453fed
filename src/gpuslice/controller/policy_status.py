"""Writes into each SlicePolicy's status whether it is in force, and if not, why.

The condition `Accepted` is all we write; it is written when it is not what it should be, whoever changed it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import structlog

from gpuslice.admission import slicepolicies, stored_policies
from gpuslice.admission.stored_policies import SLICE_POLICIES, Condition, ParsedPolicy, StoredPolicy
from gpuslice.kube.backoff import Backoff
from gpuslice.kube.errors import ApiError, UnreachableError
from gpuslice.kube.events import Recorder, Regarding
from gpuslice.kube.watching import Watch

if TYPE_CHECKING:
    from gpuslice.kube.api import Api
    from gpuslice.kube.store import Key

ACCEPTED: Final = "Accepted"
_LONGEST_MESSAGE: Final = 4096


@dataclass(frozen=True, slots=True)
class _Policy:
    parsed: ParsedPolicy
    conditions: tuple[Condition, ...]


class PolicyStatus:
    """Follows all policies and answers each."""

    def __init__(self, api: Api, recorder: Recorder) -> None:
        self.watch: Final[Watch[StoredPolicy, _Policy]] = Watch(api, SLICE_POLICIES, StoredPolicy, self._read)
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
        current = next((each for each in policy.conditions if each.type == ACCEPTED), None)
        wanted = _condition(policy.parsed, current)
        if wanted == current:
            return
        others = [each for each in policy.conditions if each.type != ACCEPTED]
        try:
            await self._api.merge(SLICE_POLICIES, name, {"status": {"conditions": [*others, wanted]}}, part="status")
        except ApiError as error:
            if not error.not_found:
                self._waiting[name] = None
                raise
        except UnreachableError:
            self._waiting[name] = None
            raise
        if wanted.status == "False":
            self._recorder.record(
                Regarding(
                    api_version=slicepolicies.API_VERSION,
                    kind=slicepolicies.KIND,
                    name=name,
                    uid=policy.parsed.uid,
                ),
                "Warning",
                wanted.reason,
                "Read",
                wanted.message,
            )

    def _read(self, stored: StoredPolicy) -> _Policy:
        known = self.watch.store.get("", stored.metadata.name)
        parsed = stored_policies.parse(stored, known.parsed if known is not None else None)
        return _Policy(parsed, stored.status.conditions)

    def _changed(self, key: Key, _old: _Policy | None, new: _Policy | None) -> None:
        if new is not None:
            self._waiting[key[1]] = None
            self._wake.set()


def _condition(parsed: ParsedPolicy, current: Condition | None) -> Condition:
    status = "False" if parsed.complaint else "True"
    since = current.last_transition_time if current is not None and current.status == status else ""
    return Condition(
        type=ACCEPTED,
        status=status,
        reason="Refused" if parsed.complaint else "Accepted",
        message=parsed.complaint[:_LONGEST_MESSAGE] or f"{len(parsed.rules)} rules are in force",
        last_transition_time=since or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        observed_generation=parsed.generation,
    )
