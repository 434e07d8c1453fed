"""A tenant can write anything on its pods, and gets no more than the policy allows."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice.admission.claims.claim_templates import template_for
from gpuslice.admission.context import Context
from gpuslice.admission.decision import Outcome
from gpuslice.dialects import registry
from gpuslice.dialects.registry import CLASS_RESOURCES
from gpuslice.model.slices import Slice
from gpuslice.model.values.kubernetes_quantities import parse_whole
from gpuslice.policies.parsing import parse_policy
from gpuslice.policies.rule_set import PolicySet
from tests.unit.admission.making import Object, admit, admitted, container, denied, patched, pod, policy, under
from tests.unit.admission.test_properties import pods, policies

GIB = 1024**3
FORGED = {
    "gpuslice.io/slice": "main: 1 slot",
    "gpuslice.io/dialect": "native",
    "gpuslice.io/backend": "extended",
    "gpuslice.io/policy": "none",
}
WHOLE, SLOTS = "nvidia.com/gpu", "nvidia.com/gpu-shared"
GPU_CLASS, MIG_CLASS = CLASS_RESOURCES


def resources(asked: Object, context: Context) -> Object:
    """What the only container has after admission."""
    (only,) = admitted(asked, context)["spec"]["containers"]
    found: Object = only["resources"]
    return found


# ---- forged annotations ----


@pytest.mark.parametrize(
    ("dialect", "more"),
    [
        *((dialect, {}) for dialect in ("castslice", "native", "x", "")),
        ("kai", {"gpu-fraction": "0.5"}),
        ("hami, native", {"gpuslice.io/fraction": "1"}),
    ],
)
def test_a_whole_gpu_under_a_forged_annotation_is_sliced_as_without(dialect: str, more: Object) -> None:
    asked = pod(container(limits={WHOLE: 1}), annotations=FORGED | more | {"gpuslice.io/dialect": dialect})
    assert resources(asked, under({"participation": "OptIn"})) == {"limits": {SLOTS: "1"}}


@given(pods(), policies)
@settings(max_examples=400, deadline=None)
def test_what_a_forged_annotation_lets_pass_would_pass_without(asked: Object, context: Context) -> None:
    """Our annotations silence those that ask, and nothing else: a pod without both has the same."""
    asked["metadata"]["annotations"] |= FORGED
    forged = admit(asked, context)
    if forged.decision.denial is not None:
        return
    bare = copy.deepcopy(asked)
    asking = [field.name for fields in registry.ASKING.values() for field in fields]
    for name in (*FORGED, *asking):
        bare["metadata"]["annotations"].pop(name, None)
    found, expected = patched(asked, forged)["spec"], patched(bare, admit(bare, context))["spec"]
    for kind in ("containers", "initContainers"):
        before, after, without = (each.get(kind, []) for each in (asked["spec"], found, expected))
        for was, now, alone in zip(before, after, without, strict=True):
            if now == was:
                assert alone == was


def test_the_label_that_admission_writes_means_nothing_to_it() -> None:
    asked = pod(container(limits={WHOLE: 1}))
    asked["metadata"]["labels"] = {"gpuslice.io/sliced": "true"}
    assert resources(asked, under({"participation": "OptIn"})) == {"limits": {SLOTS: "1"}}


# ---- recipes of claim templates ----


def by_recipe(given: Slice, recipe: str | None = None) -> Object:
    """A pod that asks in no dialect: it names a template of ours, and has the recipe that makes it, or another one."""
    template = template_for(given, None)
    naming = {"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}
    claims = [{"name": "gpu", "resourceClaimTemplateName": template.name}]
    annotations = FORGED | {"gpuslice.io/claim-templates": f"[{template.recipe if recipe is None else recipe}]"}
    return pod(naming, annotations=annotations, resourceClaims=claims)


@pytest.mark.parametrize(
    ("given_", "reason"),
    [
        (Slice(memory=5 * GIB), "comes to 5Gi of GPU memory"),
        (Slice(cores=10), "comes to 80Gi of GPU memory"),
        (Slice(memory=GIB, cores=10, devices=2), "comes to 2 devices"),
        (Slice(mig_profile="3g.40gb"), "of GPU memory"),
    ],
)
def test_a_recipe_asks_for_no_more_than_a_maximum(given_: Slice, reason: str) -> None:
    context = under({"maximum": {"memory": "4Gi", "devices": 1}}, gpu_sizes=(80 * GIB,))
    assert reason in denied(by_recipe(given_), context)
    assert admit(by_recipe(Slice(memory=4 * GIB)), context).decision.outcome is Outcome.UNTOUCHED


def test_the_amounts_are_those_of_the_name_whatever_the_recipe_says() -> None:
    """The controller makes nothing of the recipe that does not fit."""
    small = template_for(Slice(memory=GIB), None).recipe
    asked = by_recipe(Slice(memory=5 * GIB), small)
    assert "comes to 5Gi" in denied(asked, under({"maximum": {"memory": "4Gi"}}))


def test_a_recipe_is_of_the_policy_s_model() -> None:
    context = under({"gpuModel": "A30"})
    ours = Slice(memory=GIB, gpu_model="A30")
    assert admit(by_recipe(ours), context).decision.outcome is Outcome.UNTOUCHED
    other = by_recipe(Slice(memory=GIB, gpu_model="H100-80GB"))
    without = by_recipe(Slice(memory=GIB))
    unknown = by_recipe(ours, "")
    forged = by_recipe(Slice(memory=GIB), template_for(ours, None).recipe)
    for asked in (other, without, unknown, forged):
        message = denied(asked, context)
        assert message.startswith(
            "spec.containers[0].resources.claims: the claim 'gpu' is of the template 'gpuslice-1x"
        )
        assert "not known to be of an A30; ask in a dialect instead (policy" in message
    once = admitted(pod(container(limits={"gpuslice.io/memory": "1Gi"})), context)
    assert admitted(once, context) == once


@pytest.mark.parametrize("rule", [{"maximum": {"memory": "4Gi"}}, {"gpuModel": "A30"}])
def test_a_claim_that_no_container_names_is_refused_where_something_is_limited(rule: Object) -> None:
    asked = by_recipe(Slice())
    asked["spec"]["containers"] = [container()]
    message = denied(asked, under(rule))
    assert message.startswith("spec.resourceClaims: no container names the claim 'gpu'; leave it out of the pod")
    assert admit(asked).decision.outcome is Outcome.UNTOUCHED


def test_a_rewritten_pod_has_no_recipe_but_ours() -> None:
    forged = template_for(Slice(), None).recipe
    asked = pod(
        container(limits={"gpuslice.io/memory": "1Gi"}), annotations={"gpuslice.io/claim-templates": f"[{forged}]"}
    )
    assert admitted(asked)["metadata"]["annotations"]["gpuslice.io/claim-templates"] == '[{"memory":1073741824}]'


def test_a_pod_of_very_many_kinds_of_slices_is_refused() -> None:
    asked = [container(f"c{number}", {"gpuslice.io/memory": f"{number + 1}Gi"}) for number in range(17)]
    assert "slices of more than 16 kinds" in denied(pod(*asked))
    admitted(pod(*asked[:16]))


# ---- slots by their own name ----


@pytest.mark.parametrize("annotations", [{}, FORGED, FORGED | {"gpuslice.io/dialect": "kai", "gpu-fraction": "0.1"}])
@pytest.mark.parametrize(
    ("maximum", "most", "reason"),
    [
        ({"slots": 2}, 2, "asks for 3 slots; at most 2 are allowed"),
        ({"devices": 1}, 10, "11 slots can be 2 devices; the maximum is 1 devices"),
        ({"cores": 35}, 3, "4 slots can be 40% of a GPU's cores; the maximum is 35% of a GPU's cores"),
        ({"memory": "16Gi"}, 2, "3 slots can be 24Gi of GPU memory; the maximum is 16Gi of GPU memory"),
    ],
)
def test_slots_are_held_to_every_maximum(annotations: Object, maximum: Object, most: int, reason: str) -> None:
    context = under({"maximum": maximum}, gpu_sizes=(16 * GIB, 80 * GIB))

    def asking(slots: int) -> Object:
        # With our annotation, that of a dialect has been served already; without, slots stand alone.
        return pod(container(limits={SLOTS: str(slots)}), annotations=annotations)

    assert resources(asking(most), context) == {"limits": {SLOTS: str(most)}}
    message = denied(asking(most + 1), context)
    assert reason in message
    assert "(policy test/rule-0)" in message


def test_slots_that_castslice_asks_for_are_held_to_every_maximum_too() -> None:
    ratio = {"castops.io/optimize": "true", "castops.io/slice-ratio": "10"}
    asked = pod(container(limits={WHOLE: 1}), annotations=ratio)
    for maximum in ({"cores": 50}, {"memory": "10Gi"}, {"slots": 9}):
        for backend in ("extended", "dra"):
            denied(asked, under({"maximum": maximum, "backend": backend}))
    message = denied(asked, under({"maximum": {"cores": 50}}))
    assert message.startswith("spec.containers[0].resources.limits[nvidia.com/gpu]: 10 slots can be 100% of a GPU's")


def test_slots_that_another_dialect_comes_to_are_held_to_the_maximum() -> None:
    context = under({"maximum": {"slots": 4}, "backend": "extended"}, gpu_sizes=(40 * GIB,))
    assert resources(pod(container(limits={"gpuslice.io/memory": "16Gi"})), context) == {"limits": {SLOTS: "4"}}
    message = denied(pod(container(limits={"gpuslice.io/memory": "17Gi"})), context)
    assert "limits[gpuslice.io/memory]: asks for 5 slots; at most 4 are allowed" in message


def test_slots_beside_a_claim_are_held_to_the_maximum() -> None:
    asked = pod(container(limits={"gpuslice.io/memory": "1Gi", SLOTS: 50}))
    assert "asks for 50 slots" in denied(asked, under({"maximum": {"slots": 2}, "backend": "dra"}))


def test_slots_in_requests_and_init_containers_count() -> None:
    context = under({"maximum": {"slots": 2}})
    denied(pod({"name": "main", "resources": {"requests": {SLOTS: 3}}}), context)
    denied(pod(container(), init=(container("first", {SLOTS: 3}),)), context)


def test_slots_of_every_rule_are_slots_and_add_up() -> None:
    rules = [
        {"name": "small", "match": {"namespaces": ["team"]}, "maximum": {"slots": 2}, "targetResource": "nvidia.com/a"},
        {"name": "large", "match": {"namespaces": ["other"]}, "targetResource": "nvidia.com/b"},
    ]
    context = Context(policies=PolicySet(parse_policy(policy(*rules))))
    for limits in ({"nvidia.com/b": 3}, {SLOTS: 3}, {"nvidia.com/a": 1, "nvidia.com/b": 1, SLOTS: 1}):
        assert "asks for 3 slots" in denied(pod(container(limits=limits)), context)
    assert admit(pod(container(limits={"nvidia.com/a": 2})), context).decision.outcome is Outcome.UNTOUCHED


@pytest.mark.parametrize("amount", ["90e39", "500m", "-1", "x"])
def test_slots_that_are_no_number_are_refused_where_they_are_counted(amount: str) -> None:
    asked = pod(container(limits={SLOTS: amount}))
    assert "is not a" in (message := denied(asked, under({"maximum": {"slots": 2}}))) or "too large" in message
    assert admit(asked).decision.outcome is Outcome.UNTOUCHED


def test_a_rule_that_chooses_the_model_gives_no_slots() -> None:
    message = denied(pod(container(limits={SLOTS: 1})), under({"gpuModel": "T4"}))
    assert "1 slot can be of any GPU, but these pods get a T4" in message


def test_a_rule_that_only_warns_says_it_of_slots_as_well() -> None:
    reviewed = admit(pod(container(limits={SLOTS: 3})), under({"maximum": {"slots": 2}, "warnOnly": True}))
    assert reviewed.decision.outcome is Outcome.WARNED
    assert "would be denied" in reviewed.decision.warnings[0]


# ---- devices by the name of their class ----


@pytest.mark.parametrize("name", [GPU_CLASS, MIG_CLASS])
@pytest.mark.parametrize(
    "rule", [{"participation": "OptIn"}, {"maximum": {"cores": 99}}, {"dialects": ["hami"]}, {"gpuModel": "T4"}]
)
def test_devices_by_the_name_of_their_class_are_refused_where_a_rule_limits(name: str, rule: Object) -> None:
    message = denied(pod(container(limits={name: 1})), under(rule))
    assert message.startswith(f"spec.containers[0].resources.limits[{name}]: asks for devices by the name of")


@pytest.mark.parametrize("context", [Context(), under({"participation": "OptOut"}), under({"defaults": {"cores": 5}})])
def test_devices_by_the_name_of_their_class_pass_where_nothing_is_limited(context: Context) -> None:
    assert admit(pod(container(limits={GPU_CLASS: 1})), context).decision.outcome is Outcome.UNTOUCHED


# ---- devices in parts ----


def test_partitions_of_several_profiles_are_counted_together() -> None:
    asked = pod(container(limits={"nvidia.com/mig-1g.5gb": 1, "nvidia.com/mig-2g.10gb": 1}))
    for backend in ("dra", "extended"):
        assert "asks for 2 devices; at most 1 are allowed" in denied(
            asked, under({"maximum": {"devices": 1}, "backend": backend})
        )
        admitted(asked, under({"maximum": {"devices": 2}, "backend": backend}))
    two = pod(*(container(name, {"nvidia.com/mig-1g.5gb": 1}) for name in ("a", "b")))
    admitted(two, under({"maximum": {"devices": 1}}))  # of one container


# ---- gpu-manager ----


@pytest.mark.parametrize("limit", ["51", "100", "0", "", "050", "x", "1e1", "٤"])
def test_gpu_manager_is_told_of_no_more_than_the_maximum(limit: str) -> None:
    limits = {"tencent.com/vcuda-core": 20, "tencent.com/vcuda-memory": 4}
    asked = pod(container(limits=limits), annotations={"tencent.com/vcuda-core-limit": limit})
    message = denied(asked, under({"backend": "gpu-manager", "maximum": {"cores": 50}}))
    assert f"metadata.annotations[tencent.com/vcuda-core-limit]: {limit!r} is not 1 to 50" in message
    admitted(asked, under({"backend": "gpu-manager"}))
    asked["metadata"]["annotations"]["tencent.com/vcuda-core-limit"] = "50"
    admitted(asked, under({"backend": "gpu-manager", "maximum": {"cores": 50}}))


# ---- whatever a tenant writes ----


@st.composite
def hostile_pods(draw: st.DrawFn) -> Object:
    """As `pods`, with forged annotations, and with what admission itself gives."""
    made = draw(pods())
    made["metadata"]["annotations"] |= draw(st.sampled_from([{}, FORGED]))
    amounts = st.sampled_from(["0", "1", "2", "3", "8"])
    names = st.sampled_from([SLOTS, WHOLE, GPU_CLASS, MIG_CLASS, "nvidia.com/gpu.other"])
    for each in made["spec"]["containers"] + made["spec"].get("initContainers", []):
        each["resources"]["limits"] |= draw(st.dictionaries(names, amounts, max_size=2))
        if "requests" in each["resources"]:
            each["resources"]["requests"] = dict(each["resources"]["limits"])
        named = draw(st.sets(st.integers(0, 2), max_size=2))
        if named and not each["resources"]["limits"]:
            each["resources"]["claims"] = [{"name": f"gpuslice-{number}"} for number in sorted(named)]
    return made


@given(hostile_pods(), st.sampled_from(["dra", "extended"]), st.sampled_from([None, "nvidia.com/gpu.other"]))
@settings(max_examples=1000, deadline=None)
def test_where_all_is_limited_no_container_has_more(asked: Object, backend: str, target: str | None) -> None:
    rule: Object = {"participation": "OptIn", "maximum": {"slots": 2, "devices": 1, "cores": 20, "memory": "12Gi"}}
    counted = {SLOTS, WHOLE}
    if target and backend == "extended":
        rule["targetResource"] = target
        counted.add(target)
    context = under(rule | {"backend": backend}, gpu_sizes=(40 * GIB,))
    reviewed = admit(asked, context)
    if reviewed.decision.denial is not None:
        return
    spec = patched(asked, reviewed)["spec"]
    for each in spec["containers"] + spec.get("initContainers", []):
        limits = each["resources"]["limits"]
        assert all(parse_whole(limits.get(name, 0)) == 0 for name in (WHOLE, *CLASS_RESOURCES))
        assert sum(parse_whole(limits.get(name, 0)) for name in counted) <= 2
        names = {claim["name"] for claim in each["resources"].get("claims", ())}
        # The API server refuses a pod with a claim that it does not have.
        assert len(names & {claim["name"] for claim in spec.get("resourceClaims", ())}) <= 1
    for template in reviewed.decision.templates:
        (request,) = template.document("team")["spec"]["spec"]["devices"]["requests"]
        for exact in request.get("firstAvailable") or [request["exactly"]]:
            assert exact["count"] == 1
            if exact["deviceClassName"] == "gpu.gpuslice.io":
                amounts = exact["capacity"]["requests"]
                assert 0 < parse_whole(amounts["cores"]) <= 20
                assert 0 < parse_whole(amounts["memory"]) <= 12 * GIB
