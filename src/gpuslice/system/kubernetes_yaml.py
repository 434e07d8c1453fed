"""YAML as kubectl and Helm read it: no dates, no numbers to base 60, every key is a text, nothing is inside itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Hashable


class KubernetesLoader(yaml.SafeLoader):
    """For `yaml.load`."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:  # noqa: ANN401 - as PyYAML has it
        if self.check_event(yaml.AliasEvent):
            alias = self.peek_event()  # type: ignore[no-untyped-call]  # in the stubs of PyYAML
            node = self.anchors.get(alias.anchor)
            if isinstance(node, yaml.CollectionNode) and node.end_mark is None:
                raise yaml.composer.ComposerError(
                    None, None, f"the anchor {alias.anchor!r} is used inside itself", alias.start_mark
                )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002 - as PyYAML declares it
        found = super().construct_mapping(node, deep)
        return {key_text(key): value for key, value in found.items()}


KubernetesLoader.yaml_implicit_resolvers = {}
for _tag, _pattern, _starts in (
    ("bool", r"yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF", "yYnNtTfFoO"),
    ("int", r"[-+]?(?:0b[01]+|0[0-7]+|0|[1-9][0-9]*|0x[0-9a-fA-F]+)", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", "-+0123456789."),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("merge", r"<<", "<"),
):
    KubernetesLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), [*_starts.replace("\0", ""), ""]
    )


def key_text(key: object) -> str:
    """The key of a mapping, as JSON has it."""
    if isinstance(key, str):
        return key
    return str(key).lower() if isinstance(key, bool) else "null" if key is None else str(key)
