"""Fields that contradict each other, each of which is well by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuslice.configuration.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpuslice.configuration.schema import Configuration, Webhook


def problems_of(configuration: Configuration, sources: Mapping[str, str]) -> Iterator[Problem]:
    """Each is told of a field that is written, and not of the default that it contradicts."""

    def problem(path: str, text: str) -> Problem:
        return Problem(sources.get(path, ""), path, text)

    yield from _of_certificates(configuration.webhook, problem)
    yield from _of_ports(configuration.webhook, sources)
    registration = configuration.webhook.registration
    if registration.service is not None and registration.url is not None:
        yield problem(
            "webhook.registration.url",
            f"{registration.url!r} and the service {registration.service!r} are two webhooks; keep one of them",
        )
    if configuration.webhook.policies and configuration.cluster.kubeconfig is not None:
        yield problem(
            "webhook.policies", "policies from files are for a webhook without a cluster; keep them or the kubeconfig"
        )
    if configuration.budgets.gpu_minutes_per_namespace is not None and configuration.ledger.address is None:
        yield problem(
            "budgets.gpuMinutesPerNamespace", "without a ledger nothing is metered: set ledger.address as well"
        )
    ledger = configuration.ledger
    if ledger.volume_claim is not None and not (ledger.address or "").startswith("sqlite:"):
        yield problem("ledger.volumeClaim", "only a file of SQLite needs a volume: set ledger.address to one as well")
    gpus = configuration.gpus
    names = {"gpus.wholeResource": gpus.whole_resource, "gpus.sharedResource": gpus.shared_resource}
    yield from _equal_names(names, sources)
    if (dialects := getattr(configuration, "dialects", None)) is not None:
        from gpuslice.configuration import dialect_section

        yield from _equal_names(
            {
                f"{dialect_section.PREFIX}{name.name}": dialect_section.value_of(dialects, name.name)
                for name in dialect_section.NAMES
            },
            sources,
        )


def _of_certificates(webhook: Webhook, problem: Callable[[str, str], Problem]) -> Iterator[Problem]:
    if (webhook.certificate is None) != (webhook.key is None):
        given, missing = ("certificate", "key") if webhook.key is None else ("key", "certificate")
        yield problem(f"webhook.{given}", f"which {missing}? Give --certificate and --key, or webhook.{missing}")
    elif webhook.certificate is not None and webhook.hosts:
        yield problem(
            "webhook.hosts",
            "which certificate? Give --certificate and --key, or hosts for certificates of its own, not both",
        )
    if webhook.client_names and webhook.client_authority is None:
        yield problem(
            "webhook.clientNames",
            "the name is of a certificate that is asked for: give --client-authority as well, or "
            "webhook.clientAuthority",
        )


def _of_ports(webhook: Webhook, sources: Mapping[str, str]) -> Iterator[Problem]:
    """Both sockets could listen on one port, and each would get some of the other's connections."""
    if webhook.port and webhook.port == webhook.metrics_port:
        path = "webhook.metricsPort" if "webhook.metricsPort" in sources else "webhook.port"
        text = f"{webhook.port} is the port of reviews and of metrics; choose another for one of them"
        yield Problem(sources.get(path, ""), path, text)


def _equal_names(names: Mapping[str, str], sources: Mapping[str, str]) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    # What was written is told of, and not the default that it is equal to.
    for path in sorted(names, key=lambda path: path in sources):
        name = names[path]
        if name in seen:
            text = f"{name!r} is also {seen[name]}; choose another name for one of them"
            yield Problem(sources.get(path, ""), path, text)
        seen[name] = path
