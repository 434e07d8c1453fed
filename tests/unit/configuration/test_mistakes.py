"""How mistakes in a configuration are told: all of them, with the file, the field, what was found and what to write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from gpuslice.configuration import effective, reading
from gpuslice.configuration.effective import Layer, Override
from gpuslice.configuration.problems import ConfigurationError
from tests.unit.configuration.documents import HEADER, parsed

if TYPE_CHECKING:
    from pathlib import Path


def refused(text: str, header: str = HEADER) -> list[str]:
    """What is told."""
    with pytest.raises(ConfigurationError) as caught:
        effective.load([Layer("file", reading.parse(header + text, "file"))])
    assert str(caught.value).splitlines() == list(map(str, caught.value.problems))
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("webhok: {}", "file: webhok: is not known; did you mean webhook?"),
        ("webhook: {prot: 1}", "file: webhook.prot: is not known; did you mean webhook.port?"),
        ("gpus: {slots-per-gpu: 4}", "file: gpus.slots-per-gpu: is not known; did you mean gpus.slotsPerGpu?"),
        ("slotsPerGpu: 4", "file: slotsPerGpu: is not known; did you mean gpus.slotsPerGpu?"),
        ("port: 4", "file: port: is not known; did you mean webhook.port or controller.port?"),
        (
            "webhook: {registration: {colour: red}}",
            ("file: webhook.registration.colour: is not known; write one of certificate, excludedNamespaces, "
            "failurePolicy, name, service, url"),
        ),
        (
            "dialects: {castslice: {slots: 4}}",
            "file: dialects.castslice.slots: is not known; write one of annotations, defaultSlots, presets",
        ),
        (
            "dialects: {castslice: {annotations: {optimise: a}}}",
            ("file: dialects.castslice.annotations.optimise: is not known; did you mean dialects.castslice.annotations."
            "optimize?"),
        ),
        ("webhook: {port: x}", "file: webhook.port: 'x' is not a port; write 0 to 65535"),
        ("webhook: {port: 65536}", "file: webhook.port: 65536 is not a port; write 0 to 65535"),
        ("webhook: {port: true}", "file: webhook.port: true is not a port; write 0 to 65535"),
        ("webhook: {port: 8443.5}", "file: webhook.port: 8443.5 is not a port; write 0 to 65535"),
        ("webhook: {port: null}", "file: webhook.port: null is not a port; write 0 to 65535"),
        ("webhook: 4", "file: webhook: is a number; write a mapping with address, port, metricsPort"),
        ("webhook: [port]", "file: webhook: is a list; write a mapping with address, port"),
        ("webhook: {hosts: one}", "file: webhook.hosts: 'one' is not a list of texts; write a list, as [one, two]"),
        ("webhook: {hosts: [1]}", "file: webhook.hosts: [1] is not a list of texts; write a list, as [one, two]"),
        ("webhook: {drain: 10}", "file: webhook.drain: 10 is not a duration; write for example 500ms, 10s or 1h30m"),
        ("webhook: {drain: 10 s}", "file: webhook.drain: '10 s' is not a duration: write for example"),
        ("webhook: {maxBody: 4mb}", "file: webhook.maxBody: '4mb' is not an amount of bytes: the unit 'mb' is not kn"),
        ("webhook: {maxBody: []}", "file: webhook.maxBody: [] is not an amount of bytes; write for example 4MiB"),
        ("webhook: {maxConnections: 0}", "file: webhook.maxConnections: 0 is not a number of at least 1; write a who"),
        ("webhook: {address: here}", "file: webhook.address: 'here' does not appear to be an IPv4 or IPv6 address"),
        ("webhook: {certificate: ''}", "file: webhook.certificate: '' is nothing; write a text, or leave the field ou"),
        ("webhook: {registration: {service: a}}", "file: webhook.registration.service: 'a' is not a namespace and a"),
        ("webhook: {registration: {url: http://a.example}}", "file: webhook.registration.url: 'http://a.example' is"),
        ("agent: {metrics: '9500'}", "file: agent.metrics: '9500' is not where metrics can be served; write ADDRESS:P"),
        ("agent: {checkInterval: 2m}", "file: agent.checkInterval: '2m' is out of range; write 0.05s to 60s"),
        ("agent: {metricsAccess: all}", "file: agent.metricsAccess: 'all' is none of token, open"),
        ("agent: {kubelet: {enabled: 1}}", "file: agent.kubelet.enabled: 1 is not true or false; write true or false"),
        ("gpus: {defaultPolicy: shared}", ("file: gpus.defaultPolicy: 'shared' is none of share, mig, whole, reserve; "
         "did you mean share?")),
        ("gpus: {policies: {0: 7}}", "file: gpus.policies.0: 7 is none of share, mig, whole, reserve"),
        ("gpus: {policies: [mig]}", "file: gpus.policies: is a list; write a mapping, as {name: value}"),
        ("gpus: {placement: true}", "file: gpus.placement: true is none of pack, spread"),
        ("gpus: {slotsPerGpu: 0}", "file: gpus.slotsPerGpu: 0 is not a number of slots; write 1 to 1000"),
        ("gpus: {slotsPerGpu: 1001}", "file: gpus.slotsPerGpu: 1001 is not a number of slots; write 1 to 1000"),
        ("gpus: {slotsPerGpu: '4'}", "file: gpus.slotsPerGpu: '4' is not a number of slots; write 1 to 1000"),
        ("gpus: {sharedResource: 4}", "file: gpus.sharedResource: 4 is not the name of a resource; write for example"),
        ("dialects: {castslice: {defaultSlots: -1}}", ("file: dialects.castslice.defaultSlots: -1 is not a number of "
         "slots; write 1 to")),
        ("dialects: {castslice: {presets: []}}", "file: dialects.castslice.presets: is a list; write a mapping"),
        ("dialects: {castslice: {presets: {'': 1}}}", "file: dialects.castslice.presets: '' cannot be a workload type"),
        ("dialects: {castslice: {presets: {big: 0}}}", "file: dialects.castslice.presets.big: 0 is not a number of sl"),
        ("dialects: {castslice: {presets: {big: '8'}}}", "file: dialects.castslice.presets.big: '8' is not a number"),
        ("dialects: {castslice: {presets: {big: true}}}", "file: dialects.castslice.presets.big: True is not a number"),
        (
            f"dialects: {{castslice: {{presets: {{{', '.join(f'p{number}: 1' for number in range(65))}}}}}}}",
            "file: dialects.castslice.presets: has 65; keep at most 64",
        ),
        (
            "dialects: {castslice: {annotations: {sliceRatio: a b}}}",
            ("file: dialects.castslice.annotations.sliceRatio: 'a b' is not the name of an annotation; write for "
            "example example.com/slice-ratio"),
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_the_file_the_field_and_the_remedy(text: str, message: str) -> None:
    (told,) = refused(text)
    assert told.startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "gpus: {sharedResource: nvidia.com/gpu}",
            "file: gpus.sharedResource: 'nvidia.com/gpu' is also gpus.wholeResource; choose another name for one",
        ),
        (
            "gpus: {wholeResource: nvidia.com/gpu-shared}",
            "file: gpus.wholeResource: 'nvidia.com/gpu-shared' is also gpus.sharedResource; choose another name",
        ),
        (
            "dialects: {castslice: {annotations: {optimize: example.com/a, workloadType: example.com/a}}}",
            "file: dialects.castslice.annotations.workloadType: 'example.com/a' is also dialects.castslice.an",
        ),
        (
            "webhook: {certificate: a}",
            "file: webhook.certificate: which key? Give --certificate and --key, or webhook.",
        ),
        ("webhook: {key: a}", "file: webhook.key: which certificate? Give --certificate and --key, or webhook.certif"),
        ("webhook: {key: a, certificate: b, hosts: [c]}", "file: webhook.hosts: which certificate? Give --certificate"),
        ("webhook: {clientNames: [a]}", "file: webhook.clientNames: the name is of a certificate that is asked for: g"),
        (
            "webhook: {registration: {url: 'https://a.example', service: a/b}}",
            "file: webhook.registration.url: 'https://a.example' and the service 'a/b' are two webhooks; keep one",
        ),
        ("cluster: {kubeconfig: a}\nwebhook: {policies: [b]}", "file: webhook.policies: policies from files are for a"),
    ],
)
def test_fields_that_contradict_each_other_are_told(text: str, message: str) -> None:
    (told,) = refused(text)
    assert told.startswith(message)


def test_every_problem_is_told_and_not_only_the_first() -> None:
    told = refused(
        "webhok: {}\n"
        "webhook: {port: x, drain: 10, registration: {name: 4}}\n"
        "gpus: {policies: {0: migg, 1: 4}}\n"
        "dialects: {castslice: {presets: {a: 0, b: 1, c: 0}}}\n",
        header="kind: Configurator\n",
    )
    assert [line.split(": ")[1] for line in told] == [
        "apiVersion",
        "kind",
        "webhok",
        "webhook.port",
        "webhook.drain",
        "webhook.registration.name",
        "gpus.policies.0",
        "gpus.policies.1",
        "dialects.castslice.presets.a",
        "dialects.castslice.presets.c",
    ]
    assert told[0] == "file: apiVersion: is missing; write config.gpuslice.io/v1alpha1"
    assert told[1] == "file: kind: 'Configurator' is not known; write Configuration"


def test_another_version_is_refused() -> None:
    told = refused("", header="apiVersion: config.gpuslice.io/v1\nkind: Configuration\n")
    assert told == ["file: apiVersion: 'config.gpuslice.io/v1' is not known; write config.gpuslice.io/v1alpha1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("webhook: {", "file:3: is not YAML: "),
        ("webhook: {port: 1}\nwebhook: {port: 2}", "file:4: is not YAML: 'webhook' is there twice"),
        ("gpus: {policies: {0: mig, '0': share}}", "file:3: is not YAML: '0' is there twice"),
        ("webhook: &a {registration: *a}", "file:3: is not YAML: the anchor 'a' is used inside itself"),
        ("webhook: !!python/object:os.system {}", "file:3: is not YAML: could not determine a constructor"),
    ],
)
def test_what_is_not_yaml_is_told_with_its_line(text: str, message: str) -> None:
    (told,) = refused(text)
    assert told.startswith(message)


@pytest.mark.parametrize("text", ["", "[]", "4", "# nothing"])
def test_what_holds_no_configuration_is_refused(text: str) -> None:
    (told,) = refused(text, header="")
    assert told == "file: holds no configuration; begin with apiVersion: config.gpuslice.io/v1alpha1"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"apiVersion: \xff")
    for name, reason in (("absent", "cannot be read: No such file or directory"), ("latin", "is not text in UTF-8")):
        with pytest.raises(ConfigurationError, match=f"{tmp_path / name}: {reason}"):
            reading.read_file(tmp_path / name)


def test_a_flag_is_named_instead_of_its_field() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parsed("webhook: {port: 1}", [Override("--port", "webhook.port", "x")])
    assert str(caught.value) == "--port: 'x' is not a port; write 0 to 65535"
    assert all(problem.is_of_flag for problem in caught.value.problems)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "gpu",
        "/gpu",
        "example.com/",
        "example.com/a/b",
        "Example.com/gpu",
        "example..com/gpu",
        "kubernetes.io/gpu",
        "node.kubernetes.io/gpu",
        "requests.example.com/gpu",
        f"{'a.' * 122}a/gpu",
        f"example.com/{'a' * 64}",
        'example.com/"',
        "example.com/gpu\n",
    ],
)
def test_a_name_that_kubernetes_does_not_take_for_an_extended_resource_is_refused(name: str) -> None:
    (told,) = refused(yaml.safe_dump({"gpus": {"wholeResource": name}}))
    assert told.startswith("file: gpus.wholeResource: ")
    assert "is not the name of an extended resource; write" in told


@pytest.mark.parametrize("key", ["wholeResource", "sharedResource"])
@pytest.mark.parametrize(
    "name", ["gpuslice.io/memory", "nvidia.com/gpumem", "nvidia.com/mig-1g.5gb", "tencent.com/vcuda-core"]
)
def test_a_resource_of_another_dialect_is_refused(key: str, name: str) -> None:
    (told,) = refused(yaml.safe_dump({"gpus": {key: name}}))
    assert told == f"file: gpus.{key}: '{name}' has a meaning in a dialect; choose another name"


@pytest.mark.parametrize("name", ["gpu-fraction", "gpuslice.io/fraction", "gpuslice.io/slice", "gpu-memory"])
def test_an_annotation_of_another_dialect_or_of_our_own_is_refused(name: str) -> None:
    (told,) = refused(yaml.safe_dump({"dialects": {"castslice": {"annotations": {"optimize": name}}}}))
    assert told.endswith(f"optimize: '{name}' has a meaning in a dialect; choose another name")
