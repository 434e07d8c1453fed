"""`gpuslice admit`: what the webhook would do, without a cluster."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import msgspec

from gpuslice.admission import explaining, patching, workloads
from gpuslice.admission.context import Context
from gpuslice.admission.policy_parsing import load_policies
from gpuslice.admission.review import decide_document
from gpuslice.cli import documents
from gpuslice.model.errors import GpusliceError
from gpuslice.model.policies import Backend

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import TextIO

    from gpuslice.admission.decisions import Decision
    from gpuslice.admission.policyset import PolicySet
    from gpuslice.admission.subjects import Subject


def _read_labels(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    labels = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{value!r} is not a label: write for example team=research")
        labels[key] = text
    return labels


@dataclass(frozen=True, slots=True)
class _Admitted:
    """One object, before and after. One that holds no pods has no decision."""

    title: str
    namespace: str
    before: Any
    after: Any
    decision: Decision | None = None
    subject: Subject | None = None

    @property
    def denied(self) -> bool:
        return self.decision is not None and self.decision.denial is not None


@dataclass(frozen=True, slots=True)
class _File:
    """One document of a file, and the objects in it: several if it is a List."""

    document: documents.Document
    objects: list[_Admitted]


@click.command()
@click.option(
    "-f",
    "--file",
    "files",
    metavar="FILE",
    multiple=True,
    required=True,
    type=click.File(),
    help="A manifest, or - for standard input; may be given several times.",
)
@click.option("-o", "--output", type=click.Choice(["yaml", "json", "diff"]), help="How to print.  [default: yaml]")
@click.option("--explain", is_flag=True, help="Print why, instead of the manifests.")
@click.option(
    "--backend",
    type=click.Choice([choice.value for choice in Backend]),
    help="Take this backend, whatever the policies say.",
)
@click.option(
    "--policy",
    "policies",
    metavar="FILE",
    multiple=True,
    type=click.File(),
    help="SlicePolicy objects that are in force; may be given several times.",
)
@click.option("-n", "--namespace", default="default", show_default=True, help="Of objects that do not name one.")
@click.option(
    "--namespace-labels", "labels", metavar="KEY=VALUE", multiple=True, callback=_read_labels,
    help="A label of the namespace; may be given several times.",
)  # fmt: skip
def command(
    files: tuple[TextIO, ...],
    output: str | None,
    explain: bool,
    backend: str | None,
    policies: tuple[TextIO, ...],
    namespace: str,
    labels: dict[str, str],
) -> int:
    """Show what admission would make of manifests, as on a cluster of Kubernetes 1.36.

    Pods and workloads that ask for a GPU are rewritten, everything else passes as it is written. Claim templates
    that the pods need are printed before them. What is denied is left out, with the reason on standard error, and
    the exit code is 1.

    \b
    Example:
      gpuslice admit -f examples/pods/hami.yaml
      gpuslice admit -f pod.yaml --policy policy.yaml --explain
      kubectl kustomize . | gpuslice admit -f - -o diff
    """
    if explain and output == "diff":
        raise click.UsageError("--explain prints reasons, not manifests: it has no -o diff")
    context = Context(
        policies=load_policy_files(policies),
        backend=Backend(backend) if backend else None,
        namespace_labels=lambda _namespace: labels,
    )
    results = [
        _File(document, [_admit(item, namespace, context) for item in workloads.items_of(document.value)])
        for file in files
        for document in documents.read(file.read(), file.name)
    ]
    admitted = [each for result in results for each in result.objects]
    if explain:
        _print_explanations(admitted, context.policies, output)
    elif output == "diff":
        click.echo("".join(_diff(each) for each in admitted if not each.denied), nl=False)
    elif output == "json":
        templates: set[tuple[str, str]] = set()
        values = [value for each in admitted for value in _values(each, templates)]
        value = values[0] if len(values) == 1 else {"apiVersion": "v1", "kind": "List", "items": values}
        click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))
    else:
        click.echo("---\n".join(_texts(results)), nl=False)
    return _report(admitted)


def load_policy_files(files: Iterable[TextIO]) -> PolicySet:
    """The policies of all of them. The first that makes no sense is an error."""
    items = [
        item
        for file in files
        for document in documents.read(file.read(), file.name)
        for item in workloads.items_of(document.value)
    ]
    for found in items:
        if not isinstance(found, dict):
            raise GpusliceError("a policy file holds something that is no object")
    loaded = load_policies(items)
    for error in loaded.errors:
        raise error
    return loaded.policies


def _admit(item: Any, default: str, context: Context) -> _Admitted:  # noqa: ANN401 - from a file
    title, namespace = _title(item, default), _namespace(item, default)
    path = workloads.template_path(item)
    if path is None:
        return _Admitted(title, namespace, item, item)
    template = workloads.template_of(item, path)
    try:
        decision, subject = decide_document(msgspec.json.encode(template), namespace, context)
    except (ValueError, TypeError) as error:
        raise GpusliceError(f"{title}: {error}") from None
    after = item
    if decision.operations:
        after = workloads.with_template(item, path, patching.apply(template, list(decision.operations)))
    return _Admitted(title, namespace, item, after, decision, subject)


def _report(admitted: Iterable[_Admitted]) -> int:
    """Tells on standard error what a user must know, and returns the exit code."""
    code = 0
    for each in admitted:
        if each.decision is None:
            continue
        for warning in each.decision.warnings:
            click.echo(f"warning: {each.title}: {warning}", err=True)
        if each.decision.denial is not None:
            click.echo(f"error: {each.title}: denied: {each.decision.denial.message}", err=True)
            code = 1
    return code


def _texts(results: Iterable[_File]) -> Iterator[str]:
    """Documents in which nothing changed are as they were written, comments and all."""
    templates: set[tuple[str, str]] = set()
    for result in results:
        if all(each.after is each.before and not each.denied for each in result.objects):
            yield result.document.text
        else:
            yield from (documents.write(value) for each in result.objects for value in _values(each, templates))


def _values(admitted: _Admitted, templates: set[tuple[str, str]]) -> Iterator[Any]:
    """The object, after the templates that it needs and nothing before it needed. Nothing, if it was denied."""
    if admitted.denied:
        return
    for template in admitted.decision.templates if admitted.decision else ():
        if (admitted.namespace, template.name) not in templates:
            templates.add((admitted.namespace, template.name))
            yield template.document(admitted.namespace)
    yield admitted.after


def _print_explanations(admitted: Iterable[_Admitted], policies: PolicySet, output: str | None) -> None:
    explained = {
        each.title: explaining.explain(each.decision, policies.verdicts(each.subject))
        for each in admitted
        if each.decision is not None and each.subject is not None
    }
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(explained), indent=2))
    elif output == "yaml":
        click.echo(documents.write(msgspec.to_builtins(explained)), nl=False)
    else:
        click.echo("\n".join(explaining.as_text(title, why) for title, why in explained.items()), nl=False)


def _diff(each: _Admitted) -> str:
    before, after = documents.write(each.before), documents.write(each.after)
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), each.title, f"{each.title} (admitted)"
    )
    return "".join(lines)


def _metadata(item: Any) -> Mapping[str, Any]:  # noqa: ANN401 - from a file
    metadata = item.get("metadata") if isinstance(item, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def _namespace(item: Any, default: str) -> str:  # noqa: ANN401 - from a file
    return str(_metadata(item).get("namespace") or default)


def _title(item: Any, default: str) -> str:  # noqa: ANN401 - from a file
    metadata = _metadata(item)
    kind = item.get("kind", "object") if isinstance(item, dict) else "object"
    name = metadata.get("name") or metadata.get("generateName") or "(without a name)"
    return f"{kind} {_namespace(item, default)}/{name}"
