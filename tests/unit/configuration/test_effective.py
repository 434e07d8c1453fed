"""What is in force: a flag before the file before the default, and where each value comes from."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.configuration import checking, effective, fields, reading, showing
from gpuslice.configuration.dialect_section import WholeConfiguration
from gpuslice.configuration.effective import Layer, Override
from gpuslice.dialects.known import castslice
from gpuslice.model.gpu_policies import MigMode, Mode, Placement, TaintEffect
from gpuslice.model.policies import Backend
from gpuslice.model.settings import DEFAULT_SETTINGS, Settings
from tests.unit.configuration.documents import EXAMPLE, HEADER, ROOT, parsed

FIELDS = fields.everything(WholeConfiguration)


def test_the_example_says_it_all() -> None:
    found = effective.load([Layer("example", reading.read_file(EXAMPLE))])

    assert found.settings == Settings(
        whole_resource="nvidia.com/gpu",
        shared_resource="example.com/gpu-slot",
        slots_per_gpu=4,
        node_backend=Backend.EXTENDED,
        dialects={
            "castslice.presets": {"training": 4, "inference": 2, "notebook": 1},
            "castslice.annotations.optimize": "example.com/share-gpu",
            "castslice.annotations.sliceRatio": "example.com/gpu-slots",
            "castslice.annotations.workloadType": "example.com/workload",
        },
    )
    assert found.settings.get(castslice.DEFAULT_SLOTS) == 1
    assert found.configuration.gpus.policies == {"7": Mode.RESERVE, "A100-40GB": Mode.WHOLE}
    assert found.configuration.gpus.backend == "extended"
    assert found.configuration.webhook.drain_seconds == 15
    assert found.configuration.webhook.max_body_bytes == 2 * 2**20
    assert found.configuration.controller.template_grace_seconds == 1800


def test_the_document_shows_the_example() -> None:
    (shown, *_) = re.findall(
        r"^```yaml\n(.*?)^```", (ROOT / "docs" / "configuration.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert reading.parse(shown, "shown") == reading.read_file(EXAMPLE)


def test_what_a_file_does_not_say_is_as_it_is_without_one() -> None:
    assert effective.load().settings == parsed("").settings == DEFAULT_SETTINGS
    assert parsed("webhook:\ngpus: {slotsPerGpu: 4}").configuration == WholeConfiguration(
        gpus=msgspec.structs.replace(WholeConfiguration().gpus, slots_per_gpu=4)
    )


def test_the_section_gpus_says_what_each_gpu_is() -> None:
    gpus = parsed(
        "gpus: {defaultPolicy: mig, placement: spread, unhealthy: NoExecute, migMode: keep, policies: {1: reserve}}"
    ).configuration.gpus
    assert (gpus.default_policy, gpus.placement, gpus.unhealthy) == (Mode.MIG, Placement.SPREAD, TaintEffect.NO_EXECUTE)
    assert (gpus.mig_mode, gpus.policies) == (MigMode.KEEP, {"1": Mode.RESERVE})


def test_a_file_that_names_any_preset_names_them_all() -> None:
    found = parsed("dialects: {castslice: {presets: {big: 8}}}")
    assert found.settings.get(castslice.PRESETS) == {"big": 8}


def test_a_flag_counts_more_than_the_file_and_the_file_more_than_the_default() -> None:
    found = parsed(
        "webhook: {port: 1, metricsPort: 2, hosts: [a, b]}\ngpus: {policies: {0: mig, 1: whole}}",
        [
            Override("--port", "webhook.port", 3),
            Override("--host", "webhook.hosts", ["c"]),
            Override("--gpu-policy", "gpus.policies", {"1": "reserve", "2": "share"}),
        ],
    )
    webhook, gpus = found.configuration.webhook, found.configuration.gpus
    assert (webhook.port, webhook.metrics_port, webhook.max_connections) == (3, 2, 1024)
    assert webhook.hosts == ("c",)
    assert gpus.policies == {"0": Mode.MIG, "1": Mode.RESERVE, "2": Mode.SHARE}
    assert {
        path: showing.source_of(found, path) for path in ("webhook.port", "webhook.metricsPort", "webhook.key")
    } == {
        "webhook.port": "--port",
        "webhook.metricsPort": "file",
        "webhook.key": "default",
    }
    assert [found.sources[f"gpus.policies.{name}"] for name in "012"] == ["file", "--gpu-policy", "--gpu-policy"]


def test_an_agent_without_a_file_loads_no_dialect() -> None:
    found = effective.load(overrides=[Override("--state", "agent.state", "/tmp/a")], dialects=False)  # noqa: S108 - a name
    assert not hasattr(found.configuration, "dialects")
    assert found.settings == DEFAULT_SETTINGS


@pytest.mark.parametrize("field", FIELDS.values(), ids=list(FIELDS))
def test_each_default_has_the_form_that_is_asked_of_others_and_each_field_says_what_it_is_for(
    field: fields.Field,
) -> None:
    if field.path in ("apiVersion", "kind"):
        return
    default = msgspec.to_builtins(field.default)
    value = list(default) if isinstance(default, tuple) else default
    assert not list(checking.problems_of_value(field, value, "default"))
    assert field.description
    assert field.path == "gpus.policies" or field.choices or field.form.what


def test_what_is_shown_names_every_field_and_its_source() -> None:
    found = parsed("webhook: {port: 1}\ngpus: {policies: {0: mig}}", [Override("--drain", "webhook.drain", "1m")])
    shown = json.loads(showing.as_json(found))
    assert {*shown["sources"]} == {*FIELDS} - {"apiVersion", "kind"} | {"gpus.policies.0"}
    assert shown["sources"]["webhook.drain"] == "--drain"
    assert shown["configuration"]["webhook"]["port"] == 1
    lines = showing.as_yaml(found).splitlines()
    assert [line.split() for line in lines if "# default" not in line and "#" in line] == [
        ["port:", "1", "#", "file"],
        ["drain:", "1m", "#", "--drain"],
        ["'0':", "mig", "#", "file"],
    ]


_TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
_GIVEN: dict[str, st.SearchStrategy[Any]] = {
    "cluster.namespace": st.none() | st.from_regex(r"[a-z0-9]([a-z0-9-]{0,5}[a-z0-9])?", fullmatch=True),
    "webhook.port": st.integers(0, 65535).filter(lambda port: port != 8080),  # that of metrics
    "webhook.clientNames": st.lists(_TEXTS, max_size=3),
    "webhook.drain": st.sampled_from(["0", "500ms", "1h30m", "2d"]),
    "webhook.maxBody": st.integers(0, 2**40) | st.sampled_from(["4MiB", "1.5Gi", "256MB"]),
    "agent.kubelet.enabled": st.booleans(),
    "agent.auditLog": _TEXTS,
    "gpus.defaultPolicy": st.sampled_from(list(Mode)).map(str),
    "gpus.policies": st.dictionaries(_TEXTS, st.sampled_from(list(Mode)).map(str), max_size=3),
    "dialects.castslice.presets": st.dictionaries(
        st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,5}[A-Za-z0-9])?", fullmatch=True), st.integers(1, 9), max_size=3
    ),
}


@given(st.fixed_dictionaries({"webhook.clientAuthority": _TEXTS}, optional=_GIVEN))
def test_what_is_shown_can_be_read_again_and_is_shown_the_same(chosen: dict[str, Any]) -> None:
    overrides = [Override(f"--{path}", path, value) for path, value in chosen.items()]
    first = effective.load([], overrides)

    again = effective.load([Layer("shown", reading.parse(showing.as_yaml(first), "shown"))])
    third = effective.load([Layer("shown", reading.parse(showing.as_yaml(again), "shown"))])

    assert again.configuration == first.configuration
    assert showing.as_yaml(third) == showing.as_yaml(again)
    parsed_json = json.loads(showing.as_json(first))["configuration"]
    assert effective.load([Layer("shown", parsed_json)]).configuration == first.configuration


def test_a_long_value_is_kept_apart_from_where_it_comes_from() -> None:
    long = "/a" * 50
    shown = showing.as_yaml(effective.load(overrides=[Override("--audit-log", "agent.auditLog", long)]))
    assert f"auditLog: {long}  # --audit-log" in shown
    assert reading.parse(shown, "shown")["agent"]["auditLog"] == long


def test_the_name_of_a_file_cannot_break_what_is_shown() -> None:
    named = effective.load([Layer("a\nb: 4", reading.parse(HEADER + "webhook: {port: 1}", "file"))])
    assert reading.parse(showing.as_yaml(named), "shown")["webhook"]["port"] == 1
