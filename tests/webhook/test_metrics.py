"""What the metrics count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuslice.admission.webhook.cluster_view import StaticCluster
from tests.unit.admission.making import container, pod, under
from tests.webhook.support import CASTSLICE, HAMI, JSON, MALFORMED, NO_GPU

if TYPE_CHECKING:
    from tests.webhook.conftest import StartServer
    from tests.webhook.support import ServerThread

CASTSLICE_NAMES = [f"castslice_{name}_total" for name in ("requests", "mutations", "noop", "errors")]


def test_series_exist_before_the_first_event(server: ServerThread) -> None:
    metrics = server.metrics()
    zeros = [
        *CASTSLICE_NAMES,
        'gpuslice_admission_refusals_total{reason="malformed"}',
        'gpuslice_admission_seconds_count{dialect="castslice",outcome="rewritten"}',
        'gpuslice_validations_total{kind="policy",outcome="denied"}',
        "gpuslice_webhook_requests_in_flight",
    ]
    assert [metrics[name] for name in zeros] == [0] * len(zeros)


def test_each_request_is_a_mutation_a_noop_or_an_error(server: ServerThread) -> None:
    with server.connect() as client:
        for asked in (CASTSLICE, HAMI, HAMI, NO_GPU, MALFORMED):
            client.review(asked)
        client.ask("POST", "/mutate", b"nonsense", JSON)
        # Counted elsewhere:
        client.review(HAMI, "/validate")
        client.review(MALFORMED, "/validate")
    metrics = server.metrics()
    assert [metrics[name] for name in CASTSLICE_NAMES] == [6, 3, 1, 2]
    assert metrics['gpuslice_admission_seconds_count{dialect="hami",outcome="rewritten"}'] == 2
    assert metrics['gpuslice_admission_seconds_bucket{dialect="hami",le="+Inf",outcome="rewritten"}'] == 2
    assert metrics['gpuslice_admission_seconds_sum{dialect="hami",outcome="rewritten"}'] > 0
    assert metrics['gpuslice_admission_seconds_count{dialect="none",outcome="failed"}'] == 1
    assert metrics['gpuslice_admission_refusals_total{reason="malformed"}'] == 2
    assert metrics['gpuslice_validations_total{kind="pod",outcome="allowed"}'] == 1
    assert metrics['gpuslice_validations_total{kind="pod",outcome="denied"}'] == 1


def test_what_policies_do_is_counted(serve: StartServer) -> None:
    context = under(
        {"name": "asks", "match": {"expression": "object.metadata.labels.missing == 'x'"}},
        {"name": "warns", "match": {"namespaces": ["quiet"]}, "warnOnly": True},
        {"name": "limits", "maximum": {"memory": "1Mi"}},
    )
    server = serve(cluster=StaticCluster(context))
    server.review(HAMI)
    server.review(HAMI, namespace="quiet")
    metrics = server.metrics()
    assert metrics['gpuslice_admission_refusals_total{reason="not_allowed"}'] == 1
    assert metrics['gpuslice_admission_seconds_count{dialect="hami",outcome="warned"}'] == 1
    assert metrics['gpuslice_policy_expression_failures_total{policy="test/asks"}'] == 2
    assert metrics["castslice_noop_total"] == 1


def test_a_pod_in_two_dialects_is_counted_as_such(server: ServerThread) -> None:
    both = pod(container("a", {"nvidia.com/gpumem": 1000}), container("b", {"tencent.com/vcuda-core": 100}))
    assert server.review(both).response["allowed"]
    assert server.metrics()['gpuslice_admission_seconds_count{dialect="several",outcome="rewritten"}'] == 1
