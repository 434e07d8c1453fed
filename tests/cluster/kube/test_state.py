"""What admission knows of a cluster: whole before it answers, cheap to keep, and never taken down by what is stored."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import TYPE_CHECKING, Any

import pytest

from gpuslice.admission.cluster.state import ClusterState
from gpuslice.admission.context import KNOWN_GPU_SIZES, UnknownNamespaceError
from gpuslice.admission.decision import Outcome
from gpuslice.kube.errors import ApiError
from gpuslice.kube.informers import Informers
from gpuslice.kube.resources import NAMESPACES, NODES, RESOURCE_SLICES
from gpuslice.policies.stored_policies import SLICE_POLICIES
from tests.cluster.kube.support import install_policies, policy, running
from tests.unit.admission.making import admit, container, pod
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gpuslice.kube.client.api import Api
    from gpuslice.kube.resources import Resource
    from gpuslice_cluster.clusters import Cluster

_GIB = 1024**3


@contextlib.asynccontextmanager
async def _state(api: Api) -> AsyncIterator[ClusterState]:
    informers = Informers(api)
    state = ClusterState(api, informers)
    assert not state.synced()
    async with running(informers.run(), state.run()):
        await until(state.synced)
        yield state


@contextlib.asynccontextmanager
async def _created(api: Api, resource: Resource, *documents: dict[str, Any]) -> AsyncIterator[None]:
    """They are there meanwhile: the cluster is shared."""
    try:
        for document in documents:
            await api.create(resource, document)
        yield
    finally:
        for document in documents:
            with contextlib.suppress(ApiError):
                await api.delete(resource, document["metadata"]["name"])


@pytest.fixture
def name() -> str:
    return f"test-{secrets.token_hex(4)}"


def _rules(state: ClusterState) -> set[str]:
    return {rule.label for rule in state.context().policies.rules}


def _opted_in(name: str, match: dict[str, Any]) -> dict[str, Any]:
    return policy(name, {"name": "all", "match": match, "participation": "OptIn", "defaultSlots": 3})


def _rewritten(state: ClusterState, namespace: str) -> bool:
    """Whether a pod there that asks for a GPU and nothing else is opted in."""
    plain = pod(container(limits={"nvidia.com/gpu": 1}))
    return admit(plain, state.context(), namespace=namespace).decision.outcome is Outcome.REWRITTEN


async def test_a_policy_is_in_force_from_when_it_is_written_until_it_is_deleted(api: Api, name: str) -> None:
    async with _state(api) as state:
        await state.learn(UnknownNamespaceError(name))  # another test may have a policy that looks at labels
        assert not _rewritten(state, name)

        async with _created(api, SLICE_POLICIES, _opted_in(name, {"namespaces": [name]})):
            await until(lambda: f"{name}/all" in _rules(state))
            assert _rewritten(state, name)

            changes = {"spec": {"rules": [{"name": "other", "match": {"namespaces": [name]}}]}}
            await api.merge(SLICE_POLICIES, name, changes)
            await until(lambda: f"{name}/other" in _rules(state))
            assert not _rewritten(state, name)
        await until(lambda: f"{name}/other" not in _rules(state))


async def test_a_policy_that_is_there_at_the_start_is_in_force_when_the_state_is_synced(api: Api, name: str) -> None:
    async with _created(api, SLICE_POLICIES, policy(name)), _state(api) as state:
        assert f"{name}/only" in _rules(state)


async def test_what_did_not_change_is_not_read_again(api: Api, name: str) -> None:
    async with (
        _created(api, SLICE_POLICIES, policy(f"{name}-a"), policy(f"{name}-b")),
        _state(api) as state,
    ):
        before = {each: state.policies.store.get("", f"{name}-{each}") for each in "ab"}
        condition = {"type": "Test", "status": "True", "reason": "Test", "message": ""}
        condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
        await api.merge(SLICE_POLICIES, f"{name}-a", {"status": {"conditions": [condition]}}, part="status")
        await api.merge(SLICE_POLICIES, f"{name}-b", {"spec": {"priority": 7}})
        await until(lambda: any(rule.priority == 7 for rule in state.context().policies.rules))

        assert state.policies.store.get("", f"{name}-a") is before["a"]
        assert state.policies.store.get("", f"{name}-b") is not before["b"]


async def test_a_namespace_s_labels_are_known_and_their_changes_too(api: Api, name: str) -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"test": "one"}}}
    matching = _opted_in(name, {"namespaceSelector": {"matchLabels": {"test": f"two-{name}"}}})
    async with (
        _created(api, SLICE_POLICIES, matching),
        _created(api, NAMESPACES, namespace),
        _state(api) as state,
    ):
        assert not _rewritten(state, name)
        await api.merge(NAMESPACES, name, {"metadata": {"labels": {"test": f"two-{name}"}}})
        await until(lambda: _rewritten(state, name))


async def test_a_namespace_that_is_younger_than_the_watch_is_asked_for(api: Api, name: str) -> None:
    labels = {"test": name}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    matching = _opted_in(name, {"namespaceSelector": {"matchLabels": labels}})
    async with _created(api, SLICE_POLICIES, matching), _created(api, NAMESPACES, namespace), _state(api) as state:
        state.namespaces.store.put(("", name), None)  # as if the watch had not told yet
        with pytest.raises(UnknownNamespaceError) as unknown:
            _rewritten(state, name)
        await state.learn(unknown.value)

        assert _rewritten(state, name)


async def test_a_namespace_that_does_not_exist_has_no_labels(api: Api, name: str) -> None:
    matching = _opted_in(name, {"namespaceSelector": {"matchLabels": {"test": name}}})
    async with _created(api, SLICE_POLICIES, matching), _state(api) as state:
        await state.learn(UnknownNamespaceError("nowhere-at-all"))

        assert not _rewritten(state, "nowhere-at-all")


async def _remove_definition(cluster: Cluster) -> None:
    await asyncio.to_thread(cluster.kubectl, "delete", "crd", "slicepolicies.gpuslice.io", "--ignore-not-found")


@pytest.fixture
async def defined(quiet_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Policies can be written, and the watch of policies does not come to ask by itself whether they can again."""
    monkeypatch.setattr("gpuslice.kube.watching._ABSENT_SECONDS", 3600.0)
    await asyncio.to_thread(install_policies, quiet_cluster)
    return quiet_cluster


@pytest.mark.parametrize("absence", ["noticed", "unnoticed"])
async def test_policies_are_in_force_as_soon_as_their_definition_is_made_anew(
    defined: Cluster, quiet_api: Api, name: str, absence: str
) -> None:
    async with _state(quiet_api) as state, _created(quiet_api, SLICE_POLICIES, policy(f"{name}-before")):
        await until(lambda: f"{name}-before/only" in _rules(state))
        await _remove_definition(defined)
        if absence == "noticed":
            await until(lambda: not state.policies.served)
            await until(state.synced)
            assert not _rules(state), "no definition, no policies"
        await asyncio.to_thread(install_policies, defined)
        async with _created(quiet_api, SLICE_POLICIES, policy(f"{name}-after")):
            await until(lambda: _rules(state) == {f"{name}-after/only"})
            assert state.synced()


async def test_until_the_policies_of_a_new_definition_are_listed_they_count_as_unknown(
    defined: Cluster, quiet_api: Api, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _state(quiet_api) as state:
        await _remove_definition(defined)
        await until(lambda: not state.policies.served)
        listed, list_policies = asyncio.Event(), state.policies._watch._list

        async def list_late() -> str:
            await listed.wait()
            return await list_policies()

        monkeypatch.setattr(state.policies._watch, "_list", list_late)
        await asyncio.to_thread(install_policies, defined)
        await until(lambda: not state.synced())
        async with _created(quiet_api, SLICE_POLICIES, policy(name)):
            assert not state.synced()
            listed.set()
            await until(state.synced)
            assert _rules(state) == {f"{name}/only"}


@pytest.mark.usefixtures("defined")
async def test_while_their_definition_is_there_policies_are_not_void_because_the_server_says_so(
    quiet_api: Api, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _created(quiet_api, SLICE_POLICIES, policy(name)), _state(quiet_api) as state:
        await until(lambda: state.policies._watch.known_served)
        asked, list_policies = asyncio.Event(), state.policies._watch._list

        async def list_wrongly() -> str:
            asked.set()
            monkeypatch.setattr(state.policies._watch, "_list", list_policies)
            raise ApiError(404, "NotFound", "the server could not find the requested resource")

        monkeypatch.setattr(state.policies._watch, "_list", list_wrongly)
        state.policies.list_again()
        await asked.wait()
        assert state.policies.served
        assert f"{name}/only" in _rules(state)
        await until(state.policies.synced.is_set)
        assert f"{name}/only" in _rules(state)


async def test_a_definition_that_is_gone_before_its_policies_are_listed_leaves_no_review_waiting(
    defined: Cluster, quiet_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _state(quiet_api) as state:
        await _remove_definition(defined)
        await until(lambda: not state.policies.served)
        gone, list_policies = asyncio.Event(), state.policies._watch._list

        async def list_late() -> str:
            await gone.wait()
            return await list_policies()

        monkeypatch.setattr(state.policies._watch, "_list", list_late)
        await asyncio.to_thread(install_policies, defined)
        await until(lambda: not state.synced())
        await _remove_definition(defined)
        gone.set()
        await until(state.synced)


def _slice(name: str, *sizes: str, driver: str = "gpu.gpuslice.io") -> dict[str, Any]:
    devices = [
        {"name": f"gpu-{number}", "allowMultipleAllocations": True, "capacity": {"memory": {"value": size}}}
        for number, size in enumerate(sizes)
    ]
    devices.append({"name": "mig-0", "capacity": {"memory": {"value": "5Gi"}}})
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": driver, "nodeName": name, "pool": pool, "devices": devices},
    }


def _node(name: str, memory: str, count: str) -> dict[str, Any]:
    labels = {"nvidia.com/gpu.memory": memory, "nvidia.com/gpu.count": count}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


async def test_the_sizes_of_gpus_are_those_that_are_published_or_labelled_the_most_frequent_first(
    quiet_api: Api,
) -> None:
    async with _state(quiet_api) as state:
        assert state.context().gpu_sizes == KNOWN_GPU_SIZES

        async with (
            _created(quiet_api, RESOURCE_SLICES, _slice("one", "80Gi"), _slice("foreign", "7Gi", driver="other.io")),
            # The first publishes its GPUs, so its labels say nothing new.
            _created(quiet_api, NODES, _node("one", "1024", "8"), _node("two", "40960", "2")),
        ):
            await until(lambda: state.context().gpu_sizes == (40 * _GIB, 80 * _GIB))
            known = state.context()
            await quiet_api.create(RESOURCE_SLICES, _slice("three", "80Gi", "80Gi"))
            await until(lambda: state.context().gpu_sizes == (80 * _GIB, 40 * _GIB))
            assert state.context() is not known
            await quiet_api.delete(RESOURCE_SLICES, "three")
        await until(lambda: state.context().gpu_sizes == KNOWN_GPU_SIZES)


def _gpu_node(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"gpuslice.io/gpu-node": "true"}}}


async def _offer(api: Api, node: str, amount: str) -> None:
    amounts = {"nvidia.com/gpu-shared": amount}
    await api.merge(NODES, node, {"status": {"capacity": amounts, "allocatable": amounts}}, part="status")


async def test_pods_are_given_what_the_nodes_offer_also_when_a_node_changes(quiet_api: Api) -> None:
    def backends() -> set[str]:
        asked = pod(container(limits={"nvidia.com/gpu": 1}), annotations={"castops.io/optimize": "true"})
        return {str(given.backend) for given in admit(asked, state.context()).decision.grants}

    async with _state(quiet_api) as state:
        assert backends() == {"dra"}  # what the first node will offer
        async with _created(quiet_api, NODES, _gpu_node("changing")):
            await _offer(quiet_api, "changing", "20")
            await until(lambda: backends() == {"extended"})
            await _offer(quiet_api, "changing", "0")  # its agent starts again
            await asyncio.sleep(0.2)
            assert backends() == {"extended"}
            async with _created(quiet_api, RESOURCE_SLICES, _slice("changing", "80Gi")):
                await until(lambda: backends() == {"dra"})
                await _offer(quiet_api, "changing", "20")  # as if of another node: there are both
                await until(lambda: backends() == {"extended"})
        await until(lambda: backends() == {"dra"})


async def test_a_stored_policy_that_makes_no_sense_is_left_out_and_the_others_are_in_force(
    quiet_cluster: Cluster, quiet_api: Api
) -> None:
    """What an older definition let pass is still stored when a stricter one replaces it."""
    await asyncio.to_thread(install_policies, quiet_cluster)
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    lax = [{"op": "replace", "path": "/spec/versions/0/schema", "value": schema}]
    await quiet_api.call(
        "PATCH",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/slicepolicies.gpuslice.io",
        body=lax,
        content="application/json-patch+json",
    )
    nonsense: dict[str, Any] = {
        "no-spec": None,
        "spec-is-a-text": "rules",
        "spec-is-a-list": [1, 2],
        "no-rules": {"rules": []},
        "rules-are-numbers": {"rules": [1, 2.5, None]},
        "bad-expression": {"rules": [{"name": "a", "match": {"expression": "object.("}}]},
        "huge-number": {"rules": [{"name": "a", "defaultSlots": 10**18}], "priority": 10**18},
    }
    documents = [policy(f"nonsense-{key}") | {"spec": spec} for key, spec in nonsense.items()]
    async with _created(quiet_api, SLICE_POLICIES, policy("sensible")):
        # The laxer schema takes a moment to be in force.
        async with asyncio.timeout(60):
            for document in documents:
                while True:
                    try:
                        await quiet_api.create(SLICE_POLICIES, document)
                        break
                    except ApiError as error:
                        if error.code not in (400, 422):
                            raise
                        await asyncio.sleep(0.1)
        await asyncio.to_thread(install_policies, quiet_cluster)
        async with _state(quiet_api) as state:
            assert _rules(state) == {"sensible/only"}
            assert set(state.refused) == {f"nonsense-{key}" for key in nonsense}
            assert all(text.startswith("SlicePolicy nonsense-") for text in state.refused.values())

            # One that is put right is in force.
            await quiet_api.merge(SLICE_POLICIES, "nonsense-no-rules", {"spec": {"rules": [{"name": "right"}]}})
            await until(lambda: "nonsense-no-rules/right" in _rules(state))
        for document in documents:
            await quiet_api.delete(SLICE_POLICIES, document["metadata"]["name"])
