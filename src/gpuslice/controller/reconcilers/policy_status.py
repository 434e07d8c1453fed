"""Writes into each SlicePolicy's status whether it is in force, and if not, why; and whether the API server holds it
while no webhook answers.

The conditions `Accepted` and `HeldWithoutWebhook` are all we write; they are written when they are not what they should
be, also after another program changed them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, Protocol

import msgspec
from prometheus_client.core import GaugeMetricFamily

from gpuslice.kube.errors import ApiError
from gpuslice.kube.events import Recorder, Regarding
from gpuslice.kube.reconciler import Reconciler, Trigger
from gpuslice.policies import schema
from gpuslice.policies.stored_policies import SLICE_POLICIES, Condition
from gpuslice.system import timestamps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.core import Metric

    from gpuslice.controller.followed_policies import FollowedPolicy
    from gpuslice.kube.client.api import Api
    from gpuslice.kube.informers import Informer
    from gpuslice.kube.store import Key
    from gpuslice.policies.stored_policies import ParsedPolicy

ACCEPTED: Final = "Accepted"
HELD_WITHOUT_WEBHOOK: Final = "HeldWithoutWebhook"
_LONGEST_MESSAGE: Final = 4096


class HeldPolicies(Protocol):
    """Knows which policies the API server holds while no webhook answers."""

    def holds(self, policy: ParsedPolicy) -> bool: ...

    def on_held_changed(self, listener: Callable[[], None]) -> None:
        """Calls it when another answer of `holds` may be right."""


class PolicyStatus(Reconciler[str]):
    """Answers each policy; keys are their names. Without `held`, nothing is said about an absent webhook."""

    name: ClassVar[str] = "policy-status"
    longest_wait: ClassVar[float] = 30.0

    def __init__(
        self, api: Api, policies: Informer[FollowedPolicy], recorder: Recorder, held: HeldPolicies | None = None
    ) -> None:
        self._api = api
        self._policies = policies
        self._recorder = recorder
        self._held = held

    def triggers(self) -> Iterator[Trigger[str]]:
        yield Trigger(self._policies, _name_unless_gone)

    def attach(self, add: Callable[[str], None]) -> None:
        def add_all() -> None:
            for _, name in self._policies.store:
                add(name)

        if self._held is not None:
            self._held.on_held_changed(add_all)

    async def reconcile(self, key: str) -> None:
        policy = self._policies.store.get("", key)
        if policy is None:
            return
        current = {each.type: each for each in policy.conditions}
        wanted = {each.type: each for each in self._conditions(policy.parsed, current)}
        if current == current | wanted:
            return
        conditions = list((current | wanted).values())
        try:
            await self._api.merge(SLICE_POLICIES, key, {"status": {"conditions": conditions}}, part="status")
        except ApiError as error:
            if not error.not_found:
                raise
            return
        accepted = wanted[ACCEPTED]
        if accepted.status == "False" and accepted != current.get(ACCEPTED):
            regarding = Regarding(api_version=schema.API_VERSION, kind=schema.KIND, name=key, uid=policy.parsed.uid)
            self._recorder.record(regarding, "Warning", accepted.reason, "Read", accepted.message)

    def metrics(self) -> Iterator[Metric]:
        refused = sum(bool(policy.parsed.complaint) for policy in self._policies.store.values())
        policies = GaugeMetricFamily(
            "gpuslice_policies", "SlicePolicies, by whether they are in force.", labels=["state"]
        )
        policies.add_metric(["accepted"], len(self._policies.store) - refused)
        policies.add_metric(["refused"], refused)
        yield policies

    def _conditions(self, parsed: ParsedPolicy, current: dict[str, Condition]) -> list[Condition]:
        said = [_accepted(parsed)]
        if self._held is not None:
            said.append(_held_without_webhook(parsed, held=self._held.holds(parsed)))
        return [_dated(each, current.get(each.type)) for each in said]


def _name_unless_gone(key: Key, _old: object, new: object) -> tuple[str, ...]:
    return (key[1],) if new is not None else ()


def _accepted(parsed: ParsedPolicy) -> Condition:
    return Condition(
        type=ACCEPTED,
        status="False" if parsed.complaint else "True",
        reason="Refused" if parsed.complaint else "Accepted",
        message=parsed.complaint[:_LONGEST_MESSAGE] or f"{len(parsed.rules)} rules are in force",
        observed_generation=parsed.generation,
    )


def _held_without_webhook(parsed: ParsedPolicy, *, held: bool) -> Condition:
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
    return msgspec.structs.replace(wanted, last_transition_time=since or timestamps.time())
