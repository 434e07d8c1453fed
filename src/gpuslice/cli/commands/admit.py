"""`gpuslice admit`: what the webhook would do, without a cluster."""

from __future__ import annotations

import asyncio
import difflib
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from gpuslice.admission import explanation, workloads
from gpuslice.admission.context import Context
from gpuslice.cli.manifests import admitted, documents
from gpuslice.cli.manifests.admitted import NewTemplates, admit_file
from gpuslice.cli.options.configuration import Flag, configured
from gpuslice.cli.options.parameters import InputFile, InputFiles
from gpuslice.cli.output import plain_lines
from gpuslice.model.errors import GpusliceError
from gpuslice.model.policies import Backend
from gpuslice.policies.parsing import load_policies

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import BinaryIO

    from gpuslice.cli.manifests.admitted import Admitted, File
    from gpuslice.cli.replay.replaying import Replayed
    from gpuslice.configuration.effective import Effective
    from gpuslice.policies.rule_set import PolicySet

#: Where gpuslice is installed unless the configuration says otherwise.
_HOME: Final = "gpuslice-system"


def _read_labels(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    labels = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{value!r} is not a label: write for example team=research")
        labels[key] = text
    return labels


@click.command()
@click.option(
    "-f",
    "--file",
    "files",
    metavar="FILE",
    multiple=True,
    type=InputFiles("rb"),
    help="A manifest, a folder of them, or - for standard input; may be given several times.",
)
@click.option("--cluster", is_flag=True, help="Instead of manifests, the pods of a cluster, which is only read.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["yaml", "json", "diff", "table"]),
    help="How to print.  [default: yaml, with --cluster table]",
)
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
    type=InputFile("rb"),
    help="SlicePolicy objects that are in force; may be given several times.",
)
@configured(Flag("--kubeconfig", "cluster.kubeconfig", help="How to reach the --cluster."))
@click.option(
    "-n",
    "--namespace",
    help="Of objects that do not name one; with --cluster, that of the pods.  [default: default, with --cluster all]",
)
@click.option(
    "--namespace-labels", "labels", metavar="KEY=VALUE", multiple=True, callback=_read_labels,
    help="A label of the namespace; may be given several times.",
)  # fmt: skip
def command(  # noqa: PLR0913, PLR0917 - one for each option
    effective: Effective,
    files: tuple[list[BinaryIO], ...],
    cluster: bool,
    output: str | None,
    explain: bool,
    backend: str | None,
    policies: tuple[BinaryIO, ...],
    namespace: str | None,
    labels: dict[str, str],
) -> int:
    """Show what admission would make of manifests, as on a cluster of Kubernetes 1.36, or of the pods of a cluster.

    Pods that ask for a GPU are rewritten, and so are pod templates, in objects of whatever kind; everything else
    passes as it is written. Claim templates that the pods need are printed before them. What is denied is left out,
    with the reason on standard error, and the exit code is 1.

    With --cluster, the pods that are there are put through admission once more, as that cluster is, with its policies,
    GPUs and quotas, whether gpuslice is installed there or not. Policies from files are tried beside its own.

    \b
    Example:
      gpuslice admit -f examples/hami.yaml
      gpuslice admit -f pod.yaml --policy policy.yaml --explain
      gpuslice admit -f pod.yaml --config deploy/configuration.yaml -o diff
      kubectl kustomize . | gpuslice admit -f - -o diff
      gpuslice admit -f manifests/ -o table
      gpuslice admit --cluster -n research --policy policy.yaml
    """
    if explain and output in ("diff", "table"):
        raise click.UsageError(f"--explain prints reasons, not manifests: it has no -o {output}")
    if cluster == bool(files):
        raise click.UsageError("which pods? Give either -f, for example -f pod.yaml, or --cluster")
    if cluster and (labels or (output == "yaml" and not explain)):
        raise click.UsageError("--cluster has the namespaces' own labels, and is shown by -o table, json or diff")
    context = Context(
        settings=effective.settings,
        policies=load_policy_files(policies),
        backend=Backend(backend) if backend else None,
        namespace_labels=lambda _namespace: labels,
    )
    if cluster:
        return _replay(effective, namespace or "", context, output, explain=explain)
    named = namespace or "default"
    read = [
        admit_file(documents.decode(file.read(), file.name), file.name, named, context)
        for opened in files
        for file in opened
    ]
    objects = [each for file in read for document in file.documents for each in document.objects]
    if explain:
        _print_explanations(objects, context.policies, output)
    elif output == "diff":
        click.echo("".join(_diffs(objects, named)), nl=False)
    elif output == "table":
        _print_table(objects)
    elif output == "json":
        templates = NewTemplates()
        values = [value for each in objects for value in _values(each, templates)]
        value = values[0] if len(values) == 1 else {"apiVersion": "v1", "kind": "List", "items": values}
        click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))
    else:
        click.echo(documents.join(_texts(read)), nl=False)
    _report(objects, explained=explain or output == "table")
    return int(any(each.left_out for each in objects))


def _print_table(objects: Iterable[Admitted]) -> None:
    from gpuslice.cli.replay import printing
    from gpuslice.cli.replay.outcomes import Outcomes

    outcomes = Outcomes()
    for each in objects:
        outcomes.add(each.title, each)
    printing.print_table(outcomes)


def _replay(effective: Effective, namespace: str, given: Context, output: str | None, *, explain: bool) -> int:
    from gpuslice.cli.replay import printing
    from gpuslice.cli.replay.replaying import replay
    from gpuslice.kube.client.api import connect

    cluster = effective.configuration.cluster
    excluded = effective.configuration.webhook.registration.excluded_namespaces
    excluded = excluded or ("kube-system", cluster.namespace or _HOME)

    async def run() -> Replayed:
        async with connect(Path(cluster.kubeconfig) if cluster.kubeconfig else None, os.environ, "admit") as api:
            return await replay(api, namespace, given, excluded)

    found = asyncio.run(run())
    examples = [each.example for each in found.outcomes.workloads]
    if explain:
        _print_explanations(examples, found.context.policies, output)
    elif output == "diff":
        click.echo("".join(_diffs(examples, namespace)), nl=False)
    elif output == "json":
        printing.print_json(found.outcomes, found.quotas, found.unread)
    else:
        printing.print_table(found.outcomes, found.quotas)
    printing.report(found.quotas, found.unread)
    return int(found.refuses)


def load_policy_files(files: Iterable[BinaryIO]) -> PolicySet:
    """The policies of all of them. The first that makes no sense is an error."""
    items = [
        item
        for file in files
        for document in documents.read(documents.decode(file.read(), file.name), file.name)
        for item in workloads.items_of(document.value)
    ]
    for found in items:
        if not isinstance(found, dict):
            raise GpusliceError("a policy file holds something that is no object")
    loaded = load_policies(items)
    for error in loaded.errors:
        raise error
    return loaded.policies


def _report(objects: Iterable[Admitted], *, explained: bool) -> None:
    """Tells on standard error what a user must know. An explanation has said already what became of pods."""
    for each in objects:
        for warning in each.warnings:
            click.echo(f"warning: {plain_lines(warning)}", err=True)
        for pod in () if explained else each.pods:
            for warning in pod.decision.warnings:
                click.echo(f"warning: {plain_lines(pod.title)}: {plain_lines(warning)}", err=True)
            if pod.decision.denial is not None:
                click.echo(plain_lines(f"error: {pod.title}: denied: {pod.decision.denial.message}"), err=True)
        for problem in each.problems:
            click.echo(f"error: {plain_lines(str(problem))}", err=True)


def _texts(files: Iterable[File]) -> Iterator[str]:
    """What did not change is as it was written, comments and all."""
    templates = NewTemplates()
    for file in files:
        if file.untouched:
            yield file.text
            continue
        for document in file.documents:
            if document.untouched:
                yield document.text
            else:
                yield from (documents.write(value) for each in document.objects for value in _values(each, templates))


def _values(each: Admitted, templates: NewTemplates) -> Iterator[Any]:
    """The object, after the templates that it needs. Nothing, if it was denied."""
    if not each.left_out:
        yield from templates.of(each)
        yield each.after


def _diffs(objects: Iterable[Admitted], namespace: str) -> Iterator[str]:
    templates = NewTemplates()
    for each in objects:
        if each.left_out or each.untouched:
            continue
        for template in templates.of(each):
            yield _diff("", documents.write(template), "/dev/null", admitted.title(template, namespace))
        yield _diff(documents.write(each.before), documents.write(each.after), each.title, f"{each.title} (admitted)")


def _diff(before: str, after: str, name_before: str, name_after: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), name_before, name_after
    )
    return "".join(lines)


def _print_explanations(objects: Iterable[Admitted], policies: PolicySet, output: str | None) -> None:
    titles: Counter[str] = Counter()
    explained = {}
    for pod in (pod for each in objects for pod in each.pods):
        titles[pod.title] += 1
        again = f" ({titles[pod.title]})" if titles[pod.title] > 1 else ""
        explained[f"{pod.title}{again}"] = explanation.explain(
            pod.decision, policies.verdicts(pod.subject), pod.template
        )
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(explained), indent=2))
    elif output == "yaml":
        click.echo(documents.write(msgspec.to_builtins(explained)), nl=False)
    else:
        text = "\n".join(explanation.as_text(title, why) for title, why in explained.items())
        click.echo(plain_lines(text), nl=False)
