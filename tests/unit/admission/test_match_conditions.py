"""The API server asks about the pods that may ask for a GPU, and waits for us only about those that make no sense."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpuslice.admission.quota_charges.charging import is_charged
from gpuslice.admission.registration import match_conditions
from gpuslice.dialects import registry
from gpuslice.model.pods import Pod
from gpuslice.model.settings import DEFAULT_SETTINGS
from gpuslice.policies.expressions import Expression
from tests.unit.admission.making import admit, admitted, container, pod

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

Object = dict[str, Any]

MAY_ASK = Expression(match_conditions.may_ask(DEFAULT_SETTINGS))
MALFORMED = Expression(match_conditions.malformed(DEFAULT_SETTINGS))
#: Expressions of policies know no `oldObject`, so that it stands under another name.
MAY_BE_CHARGED = Expression(match_conditions.may_be_charged().replace("oldObject", "namespaceObject"))
GPU = {"nvidia.com/gpu": "1"}
OPTIMIZE = {"castops.io/optimize": "true"}

#: All that the dialects declare, so that a new one is among them.
FAMILIES = [dialect.family for dialect in registry.DIALECTS if dialect.family is not None]
FIELDS = registry.fields_of_pods()
RESOURCES = [
    "cpu",
    "memory",
    "example.com/gpu",
    "nvidia.com/gpu",
    "nvidia.com/gpu-shared",
    *registry.CLASS_RESOURCES,
    *(resource.name for dialect in registry.DIALECTS for resource in dialect.resources),
    *(f"{family.prefix}{end}" for family in FAMILIES for end in (family.examples[0], f"9g.1gb{family.suffix}")),
]
#: As the API server writes them: whole and not negative, and in one way but for the last of these.
AMOUNTS = ["0", "1", "7", "10", "99", "100", "101", "150", "200", "1000", "1k", "2k", "4Gi", "25Ki", "1e3"]
AMOUNTS += ["007", "+50", "50.", "100e0", "1E-0", "0200", "+200."]
TEXTS = [
    "",
    "0",
    "1",
    "2",
    "007",
    "00",
    "x",
    "-1",
    "1.5",
    "0.5",
    ".5",
    "0.",
    "1/2",
    "2/1",
    "0/2",
    "1/0",
    "1 / 3",
    "5/3",
    "3 / 3",
    "1.0",
    "1.01",
    "true",
    "pod",
    "c0",
    "i0",
    "c1, c0",
    "c0,missing",
    "A100-40GB",
]
TEXTS += sorted({text for field in FIELDS for text in field.form.examples[:3]} - {*TEXTS})
ANNOTATIONS = ["gpuslice.io/dialect", "other", *(field.name for field in FIELDS if field.kind == "annotations")]
LABELS = ["other", *(field.name for field in FIELDS if field.kind == "labels")]


def _pods(*, stored: bool = False) -> SearchStrategy[Object]:
    """Those that can be `stored` have no requests of what they do not limit: the API server refuses these itself."""
    amounts = st.dictionaries(st.sampled_from(RESOURCES), st.sampled_from(AMOUNTS), max_size=3)
    claims: SearchStrategy[list[dict[str, str]]] = st.just([{"name": "mine"}]) | st.just([])
    optional = {"limits": amounts, "claims": claims} | ({} if stored else {"requests": amounts})
    resources = st.fixed_dictionaries({}, optional=optional)
    containers = st.builds(
        lambda given: {"name": "main"} if given is None else {"name": "main", "resources": given},
        st.none() | resources,
    )
    texts = st.sampled_from(TEXTS) | st.text(alphabet="0123456789./ \t\v\u00a0\u3000x\n", max_size=6)
    annotations = st.dictionaries(st.sampled_from(ANNOTATIONS), texts, max_size=4)
    labels = st.dictionaries(st.sampled_from(LABELS), texts, max_size=4)
    templates = ({"resourceClaimTemplateName": name} for name in ("gpuslice-1", "my-gpuslice-1"))
    names = st.sampled_from([{}, {"resourceClaimName": "mine-1"}, *templates])
    whole = st.none() | st.lists(names.map(lambda given: {"name": "mine", **given}), max_size=2)
    return st.builds(
        lambda named, init, said, labelled, claims: _labelled(
            pod(
                *({**each, "name": f"c{index}"} for index, each in enumerate(named)),
                init=tuple({**each, "name": f"i{index}"} for index, each in enumerate(init)),
                annotations=said,
                **({} if claims is None else {"resourceClaims": claims}),
            ),
            labelled,
        ),
        st.lists(containers, min_size=1, max_size=3),
        st.lists(containers, max_size=2),
        st.none() | annotations,
        st.none() | labels,
        whole,
    )


def _labelled(asked: Object, labels: dict[str, str] | None) -> Object:
    return asked if labels is None else asked | {"metadata": asked["metadata"] | {"labels": labels}}


def _holds(expression: Expression, asked: Object) -> bool:
    return expression.holds({"object": asked})


@given(asked=_pods())
def test_a_pod_is_sent_exactly_if_it_may_ask_for_a_gpu(asked: Object) -> None:
    expected = registry.may_ask(msgspec.convert(asked, Pod), DEFAULT_SETTINGS)

    assert _holds(MAY_ASK, asked) is expected


@given(asked=_pods())
def test_under_quotas_a_pod_is_sent_exactly_if_it_may_be_charged(asked: Object) -> None:
    created = {"object": asked, "namespaceObject": {}, "request": {"operation": "CREATE"}}

    assert MAY_BE_CHARGED.holds(created) is is_charged(msgspec.convert(asked, Pod))


@pytest.mark.parametrize(
    ("before", "after", "sent"),
    [
        (None, None, False),
        (None, {}, False),
        ({"other": "a"}, {"other": "b"}, False),
        ({"gpuslice.io/asked": "a"}, {"gpuslice.io/asked": "a", "other": "b"}, False),
        ({"gpuslice.io/asked": "a"}, {"gpuslice.io/asked": "b"}, True),
        ({"gpuslice.io/asked": "a"}, None, True),
        ({}, {"gpuslice.io/asked": "a"}, True),
    ],
)
def test_under_quotas_a_change_is_sent_exactly_if_it_touches_what_was_asked(
    before: Object | None, after: Object | None, *, sent: bool
) -> None:
    old, new = (pod(container(limits=GPU), annotations=each) for each in (before, after))

    assert MAY_BE_CHARGED.holds({"object": new, "namespaceObject": old, "request": {"operation": "UPDATE"}}) is sent


@given(asked=_pods(stored=True))
def test_whatever_must_not_pass_without_us_is_refused_by_us(asked: Object) -> None:
    if _holds(MALFORMED, asked):
        assert _holds(MAY_ASK, asked)
        denial = admit(asked).decision.denial
        assert denial is not None
        assert denial.malformed


@given(asked=_pods(stored=True))
def test_whatever_no_policy_could_mend_is_seen_without_us(asked: Object) -> None:
    assume("gpuslice.io/dialect" not in asked["metadata"].get("annotations", {}))
    denial = admit(asked).decision.denial
    if denial is not None and denial.malformed:
        assert _holds(MALFORMED, asked), denial.message


@given(asked=_pods())
def test_a_pod_that_was_rewritten_does_not_depend_on_us(asked: Object) -> None:
    if admit(asked).decision.denial is None:
        assert not _holds(MALFORMED, admitted(asked))


@pytest.mark.parametrize(
    "asked",
    [
        pod(container(limits=GPU), annotations=OPTIMIZE | {"castops.io/slice-ratio": "two"}),
        pod(container(), init=(container("i", GPU),), annotations=OPTIMIZE | {"castops.io/slice-ratio": "0"}),
        pod(container(limits={"nvidia.com/mig-9g.1gb": "1"})),
        pod(container(limits={"tencent.com/vcuda-memory": "4"})),
        pod(container(limits={"tencent.com/vcuda-core": "30"})),
        pod(container(limits={"tencent.com/vcuda-core": "150", "tencent.com/vcuda-memory": "4"})),
        pod(container(limits={"gpuslice.io/cores": "101"})),
        pod(container(limits={"nvidia.com/gpumem-percentage": "1k"})),
        pod(container(limits={"nvidia.com/gpucores": "200"})),
        pod(container(limits={"nvidia.com/gpu": "0", "nvidia.com/gpumem": "1k"})),
        pod(container(limits={"nvidia.com/gpumem": "1k", "nvidia.com/gpumem-percentage": "10"})),
        pod(container(limits={"gpuslice.io/memory": "4Gi", "nvidia.com/gpumem": "1k"})),
        pod(container(limits=GPU | {"gpuslice.io/memory": "4Gi"})),
        pod(container(), annotations={"gpuslice.io/fraction": "half"}),
        pod(container(), annotations={"gpuslice.io/fraction": "1.5"}),
        pod(container(), annotations={"gpu-fraction": "0.0"}),
        pod(container(), annotations={"gpu-fraction": "1/0"}),
        pod(container(), annotations={"gpu-fraction": "0.5", "gpu-memory": "1024"}),
        pod(container(), annotations={"gpu-memory": "4Gi"}),
        pod(container(), annotations={"gpu-fraction-num-devices": "2"}),
        pod(container(), annotations={"gpuslice.io/fraction": "5/3"}),
        pod(container(), annotations={"gpu-fraction": "1.0"}),
        pod(container(), annotations={"gpu-fraction": "2 / 2"}),
        pod(container(limits=GPU), annotations={"gpu-fraction": "0.5"}),
        pod(container(limits=GPU), annotations={"gpuslice.io/fraction": "0.5"}),
        pod(container(), annotations={"gpuslice.io/fraction": "0.5", "gpu-fraction": "0.5"}),
        pod(container(), annotations={"gpu-fraction": "0.5", "gpu-fraction-container-name": "missing"}),
        pod(container(), annotations={"gpuslice.io/fraction": "0.5", "gpuslice.io/containers": "main, missing"}),
        pod(container(), annotations={"gpuslice.io/fraction": "0.5", "gpuslice.io/sharing": "everybody"}),
        pod(container(limits={"gpuslice.io/memory": "4Gi"}), annotations={"gpuslice.io/gpu-model": "?"}),
        pod(container(limits=GPU | {"nvidia.com/gpumem": "1k"}), annotations=OPTIMIZE),
    ],
)
def test_what_is_malformed_is_seen_without_us(asked: Object) -> None:
    assert _holds(MALFORMED, asked)


@pytest.mark.parametrize(
    "asked",
    [
        pod(container()),
        pod(container(limits={"cpu": "1"})),
        pod(container(limits={"nvidia.com/gpu": "1"})),
        pod(container(limits={"nvidia.com/gpu": "1"}), annotations=OPTIMIZE | {"castops.io/slice-ratio": "2"}),
        pod(container(limits={"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "4"})),
        pod(container(limits={"nvidia.com/mig-1g.5gb.me": "1"})),
        pod(container(limits={"nvidia.com/gpu": "2", "nvidia.com/gpumem": "1k", "nvidia.com/gpucores": "100"})),
        pod(container(), annotations={"gpu-fraction": "1 / 3"}),
        pod(container(), annotations={"gpu-fraction": "1\v/\v3"}),
        pod(container(), annotations={"gpuslice.io/fraction": "3/3"}),
        pod(container(limits={"gpuslice.io/cores": "100e0", "gpuslice.io/memory": "+1Gi"})),
        pod(container(limits={"tencent.com/vcuda-core": "+050.", "tencent.com/vcuda-memory": "4"})),
        pod(container(), annotations={"gpuslice.io/sharing": "everybody"}),
        pod(
            container(limits=GPU),
            container("other"),
            annotations={"gpu-fraction": "0.5", "gpu-fraction-container-name": "other"},
        ),
        pod(
            container(limits=GPU),
            container("other"),
            annotations={"gpuslice.io/fraction": "1/2", "gpuslice.io/containers": " other "},
        ),
        pod(
            container(),
            container("other"),
            annotations={"gpuslice.io/fraction": "1/2", "gpuslice.io/containers": "other", "gpu-fraction": "0.5"},
        ),
    ],
)
def test_what_is_well_formed_never_waits_for_us(asked: Object) -> None:
    assert not _holds(MALFORMED, asked)


@pytest.mark.parametrize(
    "said",
    [
        {"gpuslice.io/fraction": "0.5", "gpuslice.io/containers": "missing," * 1000},
        {"gpuslice.io/fraction": " " * 10_000 + "2"},
        {"gpu-fraction": " " * 10_000 + "2"},
    ],
    ids=lambda said: next(reversed(said)),
)
def test_the_api_server_does_not_spend_seconds_on_long_texts(said: Object) -> None:
    asked = pod(container(), annotations=said)
    assert not _holds(MALFORMED, asked)
    denial = admit(asked).decision.denial
    assert denial is not None
    assert denial.malformed


def test_names_are_configuration() -> None:
    settings = replace(
        DEFAULT_SETTINGS,
        whole_resource="example.com/gpu",
        shared_resource="example.com/slots",
        dialects={"castslice.annotations.optimize": "a/b", "castslice.annotations.sliceRatio": "c/d"},
    )
    slots = pod(container(limits={"example.com/slots": "1"}))
    asked = pod(container(limits={"example.com/gpu": "1"}), annotations={"a/b": "true", "c/d": "nonsense"})

    assert _holds(Expression(match_conditions.may_ask(settings)), asked)
    assert _holds(Expression(match_conditions.malformed(settings)), asked)
    assert not _holds(MAY_ASK, asked)
    assert _holds(Expression(match_conditions.may_ask(settings)), slots)
    assert registry.may_ask(msgspec.convert(slots, Pod), settings)
