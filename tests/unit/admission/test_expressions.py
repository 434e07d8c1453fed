"""CEL expressions of policies."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from gpuslice.policies.expressions import Expression, ExpressionError

VARIABLES: dict[str, Any] = {
    "object": {"metadata": {"labels": {"app": "train"}}, "spec": {"containers": [{"name": "a"}, {"name": "b"}]}},
    "namespaceObject": {"metadata": {"name": "team", "labels": {}}},
    "request": {"namespace": "team", "userInfo": {"username": "ada", "groups": ["x"]}},
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("true", True),
        ('object.metadata.labels.app == "train"', True),
        ('object.metadata.labels["app"].startsWith("t") && namespaceObject.metadata.name == "team"', True),
        ("object.spec.containers.exists(c, c.name == 'b')", True),
        ("has(object.metadata.annotations) && object.metadata.annotations['x'] == 'y'", False),
        ('"admins" in request.userInfo.groups', False),
    ],
)
def test_an_expression_says_yes_or_no(text: str, holds: bool) -> None:  # noqa: FBT001 - a case
    assert Expression(text).holds(VARIABLES) is holds


@pytest.mark.parametrize("text", ["", "object.", "nobody == 1", "1", "'yes'", "[true]", "frob(object)", "(" * 5000])
def test_what_cannot_be_compiled_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        Expression(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("object.spec.nothing == 1", "Key not found"),
        ("size(object.spec.containers) / 0 == 1", "divide by zero"),
        ("object.metadata", "not true or false"),
        ("object.metadata.labels.app", "not true or false"),
        ("request.userInfo.username > 3", "No matching overload|no such overload|No matching"),
        ("[1,2,3,4,5,6,7,8,9].all(a, object.big.all(b, object.big.all(c, true)))", "budget"),
    ],
)
def test_what_has_no_answer_says_why(text: str, reason: str) -> None:
    big = VARIABLES | {"object": VARIABLES["object"] | {"big": list(range(2000))}}
    with pytest.raises(ExpressionError, match=reason):
        Expression(text).holds(big)


def test_a_cluster_without_expressions_does_not_load_the_library() -> None:
    program = "import sys, gpuslice.admission.review; sys.exit('cel_expr_python' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    "text",
    [
        "object.?spec.hasValue() == false",
        'object.metadata.?labels.?team.orValue("none") == "none"',
        'object.metadata.labels[?"team"].orValue("") == ""',
    ],
)
def test_a_field_that_is_not_there_can_be_asked_for(text: str) -> None:
    assert Expression(text).holds({"object": {"metadata": {"labels": {}}}})


@pytest.mark.parametrize("function", ["url", "ip", "semver"])
def test_a_function_that_only_kubernetes_has_is_refused_by_its_name(function: str) -> None:
    with pytest.raises(ExpressionError, match=f"undeclared reference to '{function}'"):
        Expression(f'{function}("1").x()')


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ('quantity("1Gi").isGreaterThan(quantity("1000M"))', True),
        ('quantity("1Gi").isLessThan(quantity("1000M"))', False),
        ('quantity("1500m") == quantity("1.5") && quantity("1") != quantity("2")', True),
        ('quantity("2").compareTo(quantity("2000m")) == 0 && quantity("-1").sign() == -1', True),
        ('quantity("1Ki").compareTo(quantity("2Ki")) == -1', True),
        ('quantity("50k").add(quantity("20")) == quantity("50020") && quantity("1").sub(2) == quantity("-1")', True),
        ('quantity("4k").isInteger() && quantity("4k").asInteger() == 4000', True),
        ('quantity("1500m").isInteger() || quantity("99E").add(quantity("99E")).isInteger()', False),
        ('quantity("500m").asApproximateFloat() == 0.5', True),
        ('isQuantity("1.3Gi") && !isQuantity("200 Gi") && !isQuantity("Three")', True),
        ("object.limits.all(name, quantity(object.limits[name]).isLessThan(quantity('16Gi')))", True),
        ('quantity(object.?limits["memory"].orValue("0")).isGreaterThan(quantity("4Gi"))', True),
        ("sets.contains([1, 2, 3], [3, 1.0]) && !sets.contains([1], [1, 2]) && sets.contains([], [])", True),
        ("sets.equivalent([1, 1, 2], [2, 1]) && !sets.equivalent([1], [true])", True),
        ("sets.intersects(object.groups, ['admins', 'ml']) && !sets.intersects([], ['x'])", True),
        ("sets.contains([[1, true], {'a': [2]}], [{'a': [2.0]}])", True),
    ],
)
def test_kubernetes_functions_answer_as_they_do_there(text: str, holds: bool) -> None:  # noqa: FBT001 - a case
    pod = {"limits": {"memory": "8Gi", "cpu": 2, "x": 0.5}, "groups": ["ml"]}
    assert Expression(text).holds({"object": pod}) is holds


@pytest.mark.parametrize("text", ['quantity("1")', 'quantity("1").isGreaterThan("2")', "sets.contains(1, [1])"])
def test_a_quantity_is_no_answer_and_no_text(text: str) -> None:
    with pytest.raises(ExpressionError):
        Expression(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('quantity("4 Gi").isInteger()', "is not a quantity"),
        ('quantity("1.5").asInteger() == 1', "not a whole number"),
        ("object.labels.isInteger()", "not a quantity"),
        ("object.forged.isInteger()", "not a quantity"),
        ("object.zero.isInteger()", "not a quantity"),
    ],
)
def test_what_is_no_quantity_has_no_answer(text: str, reason: str) -> None:
    forged = {"labels": {"app": "x"}, "forged": {"quantity": "many"}, "zero": {"quantity": "1/0"}}
    with pytest.raises(ExpressionError, match=reason):
        Expression(text).holds({"object": forged})
