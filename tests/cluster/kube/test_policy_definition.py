"""The definition of SlicePolicy, as a real API server takes it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gpuslice.kube.errors import ApiError
from gpuslice.policies.stored_policies import SLICE_POLICIES
from tests.cluster.kube.support import ROOT, policy

if TYPE_CHECKING:
    from gpuslice.kube.client.api import Api
    from gpuslice_cluster.clusters import Cluster


def test_the_definition_is_accepted_and_its_schema_is_structural(policies: Cluster) -> None:
    definition = json.loads(policies.kubectl("get", "crd", "slicepolicies.gpuslice.io", "-o", "json"))

    conditions = {each["type"]: each["status"] for each in definition["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert "NonStructuralSchema" not in conditions


def test_the_examples_are_accepted(policies: Cluster) -> None:
    example = ROOT / "examples" / "policies" / "research.yaml"
    policies.kubectl("create", "--dry-run=server", "--validate=strict", "-f", str(example))


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ({"backend": "cloud"}, "Unsupported value"),
        ({"match": {"namespaces": ["Not A Name"]}}, "spec.rules[0].match.namespaces[0]"),
        ({"maximum": {"memory": "lots"}}, "spec.rules[0].maximum.memory"),
        ({"defaults": {"cores": 60}, "maximum": {"cores": 50}}, "defaults.cores is above maximum.cores"),
        ({"targetResource": "a.b/c", "backend": "dra"}, "targetResource counts slots"),
        ({"dialects": []}, "dialects allows none"),
        ({"tolerations": [{"operator": "Equal"}]}, "only the operator Exists can do without a key"),
        (
            {"match": {"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}},
            "In and NotIn need values",
        ),
    ],
)
async def test_a_policy_that_makes_no_sense_is_refused_when_it_is_written(
    api: Api, rule: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ApiError) as refusal:
        await api.call(
            "POST",
            SLICE_POLICIES.path(),
            parameters={"dryRun": "All"},
            body=policy("senseless", {"name": "only"} | rule),
        )

    assert refusal.value.code == 422
    assert complaint in str(refusal.value)
