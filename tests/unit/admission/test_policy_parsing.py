"""SlicePolicy objects: what is refused, and that the definition in deploy/ says the same."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gpuslice.dialects.registry import NAMES
from gpuslice.model.policies import Backend, Participation, Rule
from gpuslice.policies.parsing import PolicyError, load_policies, parse_policy
from gpuslice.policies.schema import RuleSpec
from tests.unit.admission.making import policy
from tools import crds


def test_a_policy_becomes_rules() -> None:
    document = policy(
        {"name": "a", "match": {"namespaces": ["x"], "expression": "true"}, "maximum": {"memory": "8Gi"}},
        {"name": "b", "backend": "extended", "participation": "OptIn"},
        name="team",
        priority=5,
    )
    first, second = parse_policy(document)
    assert (first.label, first.priority, first.maximum.memory) == ("team/a", 5, 8 * 2**30)
    assert (second.label, second.backend, second.participation) == (
        "team/b",
        Backend.EXTENDED,
        Participation.OPT_IN,
    )


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ({"name": "A"}, "spec.rules[0].name: "),
        ({}, "spec.rules[0]: Object missing required field 'name'"),
        ({"name": "r", "backends": "dra"}, "spec.rules[0]: Object contains unknown field 'backends'"),
        ({"name": "r", "backend": "magic"}, "spec.rules[0].backend: Invalid enum value 'magic'"),
        ({"name": "r", "dialects": ["klingon"]}, "spec.rules[0].dialects[0]: Invalid enum value"),
        ({"name": "r", "dialects": []}, "spec.rules[0].dialects: allows none"),
        ({"name": "r", "maximum": {"memory": "8 GB"}}, "spec.rules[0].maximum.memory: '8 GB' is not a quantity"),
        ({"name": "r", "maximum": {"memory": 0}}, "spec.rules[0].maximum.memory: is 0"),
        ({"name": "r", "maximum": {"cores": 101}}, "spec.rules[0].maximum.cores: "),
        ({"name": "r", "defaults": {"memory": "2Gi"}, "maximum": {"memory": "1Gi"}}, "spec.rules[0].defaults.memory: "),
        ({"name": "r", "defaults": {"cores": 2}, "maximum": {"cores": 1}}, "spec.rules[0].defaults.cores: is above"),
        ({"name": "r", "backend": "dra", "targetResource": "a/b"}, "spec.rules[0].targetResource: counts slots"),
        ({"name": "r", "targetResource": "cpu"}, "targetResource: "),
        ({"name": "r", "targetResource": "nvidia.com/gpu"}, "counts whole GPUs"),
        ({"name": "r", "targetResource": "requests.example.com/x"}, "is not the name of an extended resource"),
        ({"name": "r", "targetResource": "kubernetes.io/batch"}, "is not the name of an extended resource"),
        ({"name": "r", "targetResource": "gpuslice.io/memory"}, "has a meaning in a dialect"),
        ({"name": "r", "targetResource": "nvidia.com/mig-1g.5gb"}, "has a meaning in a dialect"),
        ({"name": "r", "backend": "gpu-manager", "gpuModel": "A100-40GB"}, "gpuModel: gpu-manager gives any GPU"),
        ({"name": "r", "backend": "gpu-manager", "dialects": ["kai"]}, "spec.rules[0].backend: gpu-manager"),
        ({"name": "r", "match": {"expression": "object."}}, "spec.rules[0].match.expression: 1:8: Syntax error"),
        ({"name": "r", "match": {"expression": "pods == 1"}}, "undeclared reference to 'pods'"),
        ({"name": "r", "match": {"expression": "1 + 1"}}, "it gives a value of type INT, not true or false"),
        ({"name": "r", "gpuModel": '"x'}, "spec.rules[0].gpuModel: "),
        (
            {"name": "r", "match": {"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}},
            "spec.rules[0].match.podSelector.matchExpressions[0].values: In needs at least one value",
        ),
        ({"name": "r", "tolerations": [{"operator": "Equal"}]}, "spec.rules[0].tolerations[0].key: is missing"),
        (
            {"name": "r", "tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
            "spec.rules[0].tolerations[0].value: Exists has no value",
        ),
        ({"name": "r", "nodeSelector": {"a": "not a label!"}}, "spec.rules[0].nodeSelector"),
    ],
)
def test_a_bad_policy_is_refused_with_its_name_and_the_field(rule: dict[str, Any], complaint: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy(policy(rule, name="bad"))
    assert str(caught.value).startswith("SlicePolicy bad: ")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"metadata": None},
        {"spec": 1},
        policy(),
        policy({"name": "r"}) | {"kind": "Pod"},
        policy({"name": "r"}, name=""),
    ],
)
def test_what_is_no_policy_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(PolicyError):
        parse_policy(document)


def test_an_object_of_another_kind_is_named_as_what_it_is() -> None:
    other = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hami"}, "spec": {"containers": []}}
    with pytest.raises(PolicyError, match=r"^Pod hami: it is a Pod of v1, not a SlicePolicy of gpuslice\.io/v1alpha1$"):
        parse_policy(other)


def test_two_rules_of_one_name_are_refused() -> None:
    with pytest.raises(PolicyError, match=r"spec\.rules\[1\]\.name: 'r' is also the name of spec\.rules\[0\]"):
        parse_policy(policy({"name": "r"}, {"name": "r"}))


def test_a_bad_policy_does_not_take_the_others_down() -> None:
    loaded = load_policies([policy({"name": "r"}, name="good"), policy({"name": "R"}, name="bad"), {}])
    assert [rule.policy for rule in loaded.policies.rules] == ["good"]
    assert [str(error).split(":")[0] for error in loaded.errors] == ["SlicePolicy bad", "SlicePolicy (without a name)"]


def test_the_definition_in_deploy_is_what_the_structs_say() -> None:
    for path, text in crds.texts().items():
        assert path.read_text() == text, "run: .venv/bin/python -m tools.crds"


def rule_schema() -> dict[str, Any]:
    definition = yaml.safe_load(crds.TARGET.read_text())
    (version,) = definition["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    schema: dict[str, Any] = spec["properties"]["rules"]["items"]
    return schema


def test_the_definition_has_every_field_of_a_rule() -> None:
    fields = set(RuleSpec.__struct_encode_fields__)
    assert set(rule_schema()["properties"]) == fields
    own = set(Rule.__dataclass_fields__) - {"policy", "priority", "position", "when_unreviewed"}
    assert len(own) == len(fields)


def test_every_dialect_can_be_allowed() -> None:
    assert sorted(rule_schema()["properties"]["dialects"]["items"]["enum"]) == sorted(NAMES)


def structural(schema: dict[str, Any]) -> None:
    """What the API server asks of a structural schema: a type everywhere, no references, no null."""
    assert "$ref" not in schema
    if schema.get("x-kubernetes-int-or-string"):
        assert "type" not in schema
        return
    assert schema["type"] in ("object", "array", "string", "integer", "boolean")
    assert not ("properties" in schema and "additionalProperties" in schema)
    for child in schema.get("properties", {}).values():
        structural(child)
    for key in ("items", "additionalProperties"):
        if key in schema:
            structural(schema[key])


def test_the_schema_is_structural() -> None:
    definition = yaml.safe_load(crds.TARGET.read_text())
    structural(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


@pytest.mark.parametrize(
    ("rule", "holds"),
    [
        ({"name": "r"}, True),
        ({"name": "r", "targetResource": "a/b"}, True),
        ({"name": "r", "targetResource": "a/b", "backend": "dra"}, False),
        ({"name": "r", "dialects": []}, False),
        ({"name": "r", "defaults": {"cores": 2}, "maximum": {"cores": 1}}, False),
        ({"name": "r", "defaults": {"cores": 2}, "maximum": {"memory": "1Gi"}}, True),
    ],
)
def test_the_definition_s_own_rules_say_what_parsing_says(rule: dict[str, Any], holds: bool) -> None:  # noqa: FBT001 - a case
    from cel_expr_python import cel

    environment = cel.NewEnv(variables={"self": cel.Type.DYN})
    rules = [each["rule"] for each in rule_schema()["x-kubernetes-validations"]]
    assert all(environment.compile(text).eval(data={"self": rule}).value() is True for text in rules) == holds
    if holds:
        parse_policy(policy(rule))
    else:
        with pytest.raises(PolicyError):
            parse_policy(policy(rule))
