"""A maximum holds for GPUs by whatever name a container asks for them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice.admission.claims import claim_amounts
from gpuslice.admission.context import Context
from gpuslice.admission.decision import Outcome
from gpuslice.dialects import registry
from gpuslice.model.settings import Settings
from gpuslice.model.values.kubernetes_quantities import parse_whole
from tests.unit.admission.making import Object, admit, admitted, container, denied, patched, pod, under

GIB = 1024**3
WHOLE, SLOTS, TARGET = "nvidia.com/gpu", "nvidia.com/gpu-shared", "nvidia.com/team-slots"
UNREAD = {name for dialect in registry.DIALECTS for name in dialect.unread}
#: Every name that a dialect declares, and names in their domains that none declares.
NAMES = sorted(
    {WHOLE, SLOTS, TARGET, f"{WHOLE}.shared", "nvidia.com/mig-1g.5gb.shared", "nvidia.com/mig-odd"}
    | {*registry.BY_RESOURCE, *registry.CLASS_RESOURCES, *UNREAD}
    | {f"{prefix}unheard-of" for dialect in registry.DIALECTS for prefix in dialect.prefixes}
    | {
        f"{dialect.family.prefix}{example}"
        for dialect in registry.DIALECTS
        if dialect.family is not None
        for example in dialect.family.examples
    }
)


def refused(name: str, count: int, rule: Object, **context: object) -> str:
    return denied(pod(container(limits={name: count})), under(rule, **context))


def passes(name: str, count: int, rule: Object, **context: object) -> None:
    asked = pod(container(limits={name: count}))
    assert admit(asked, under(rule, **context)).decision.outcome is Outcome.UNTOUCHED


@pytest.mark.parametrize("name", [f"{WHOLE}.unheard-of", "nvidia.com/tesla-t4"])
@pytest.mark.parametrize("participation", ["OptIn", "Annotated"])
def test_a_name_that_no_dialect_reads_counts_as_gpus(name: str, participation: str) -> None:
    rule = {"participation": participation, "maximum": {"devices": 1}}
    assert f"{name}]: 8 x {name} can be 8 devices; the maximum is 1 devices" in refused(name, 8, rule)
    passes(name, 1, rule)


@pytest.mark.parametrize(
    ("maximum", "reason"),
    [
        ({"devices": 1}, "can be 8 devices; the maximum is 1 devices"),
        ({"memory": "4Gi"}, "can be 80Gi of GPU memory; the maximum is 4Gi of GPU memory"),
        ({"cores": 99}, "can be 100% of a GPU's cores; the maximum is 99% of a GPU's cores"),
        ({"slots": 79}, "can be 80 slots; the maximum is 79 slots"),
    ],
)
def test_whole_gpus_are_held_to_every_maximum_without_opt_in(maximum: Object, reason: str) -> None:
    sizes = (16 * GIB, 80 * GIB)
    message = refused(WHOLE, 8, {"maximum": maximum}, gpu_sizes=sizes)
    assert message.startswith(f"spec.containers[0].resources.limits[{WHOLE}]: 8 x {WHOLE} {reason}")
    passes(WHOLE, 8, {"maximum": {"devices": 8, "memory": "80Gi", "cores": 100, "slots": 80}}, gpu_sizes=sizes)


def test_whole_gpus_of_another_name_are_whole_gpus() -> None:
    context = under({"maximum": {"devices": 1}})
    renamed = Context(policies=context.policies, settings=Settings(whole_resource="example.com/gpu"))
    assert "can be 2 devices" in denied(pod(container(limits={"example.com/gpu": 2})), renamed)


def test_what_is_asked_by_several_names_adds_up() -> None:
    rule = {"maximum": {"devices": 2}}
    context = under(rule, gpu_sizes=(40 * GIB,))
    admitted(pod(container(limits={WHOLE: 1, SLOTS: 3})), context)
    message = denied(pod(container(limits={WHOLE: 2, SLOTS: 3})), context)
    assert f"3 slots and 2 x {WHOLE} can be 3 devices; the maximum is 2 devices" in message


def test_a_rule_that_chooses_the_model_gives_no_gpu_by_name() -> None:
    assert f"{WHOLE} can be of any GPU, but these pods get a T4" in refused(WHOLE, 1, {"gpuModel": "T4"})


def test_what_gpu_manager_serves_counts_beside_slots() -> None:
    limits = {"tencent.com/vcuda-core": 20, "tencent.com/vcuda-memory": 4, SLOTS: 3}
    context = under({"backend": "gpu-manager", "maximum": {"cores": 40}}, gpu_sizes=(40 * GIB,))
    assert "can be 50% of a GPU's cores" in denied(pod(container(limits=limits)), context)
    admitted(pod(container(limits=limits | {SLOTS: 2})), context)


def test_a_network_card_in_the_domain_of_gpus_is_none() -> None:
    rule = {"maximum": {"devices": 1}}
    passes("nvidia.com/hostdev", 2, rule)
    context = under(rule)
    configured = Context(policies=context.policies, settings=Settings(other_resources=frozenset({"nvidia.com/nic"})))
    asked = pod(container(limits={"nvidia.com/nic": 2}))
    assert admit(asked, configured).decision.outcome is Outcome.UNTOUCHED
    denied(asked, context)


def test_gpus_by_name_count_in_init_containers_and_requests() -> None:
    context = under({"maximum": {"devices": 1}})
    denied(pod(container(), init=(container("first", {WHOLE: 2}),)), context)
    denied(pod({"name": "main", "resources": {"requests": {WHOLE: 2}}}), context)


amounts = st.sampled_from([0, 1, 2, 3, 10, 50, 100, 200, 4096])


@given(
    st.dictionaries(st.sampled_from(NAMES), amounts, min_size=1, max_size=3),
    st.sampled_from(["OptIn", "Annotated"]),
    st.sampled_from([None, "dra", "extended", "gpu-manager"]),
)
@settings(max_examples=1500, deadline=None)
def test_by_no_name_does_a_container_get_more(limits: Object, participation: str, backend: str | None) -> None:
    rule: Object = {"participation": participation, "maximum": {"slots": 1, "devices": 1, "cores": 10, "memory": "4Gi"}}
    if backend:
        rule["backend"] = backend
    if backend != "dra":
        other = {"match": {"namespaces": ["other"]}, "targetResource": TARGET}
    else:
        other = {"match": {"namespaces": ["other"]}}
    context = under(other, rule, gpu_sizes=(40 * GIB,))
    asked = pod(container(limits=limits))
    reviewed = admit(asked, context)
    if reviewed.decision.denial is not None:
        return
    spec = patched(asked, reviewed)["spec"]
    (only,) = spec["containers"]
    left = {name: parse_whole(count) for name, count in only["resources"]["limits"].items() if parse_whole(count)}
    slots = left.pop(SLOTS, 0) + left.pop(TARGET, 0)
    cores, memory = left.pop("tencent.com/vcuda-core", 0), left.pop("tencent.com/vcuda-memory", 0)
    assert not {*left} - UNREAD
    given_ = [claim_amounts.read(claim["resourceClaimTemplateName"]) for claim in spec.get("resourceClaims", ())]
    assert all(each is not None and each.memory is not None and each.cores for each in given_)
    held = [(each.devices, each.memory or 0, each.cores) for each in given_ if each is not None]
    held += [(1, slots * 4 * GIB, slots * 10)] if slots else []
    held += [(1, memory * 256 * 1024**2, cores)] if cores else []
    assert sum(devices for devices, _, _ in held) <= 1
    assert sum(memory for _, memory, _ in held) <= 4 * GIB
    assert sum(cores for _, _, cores in held) <= 10
