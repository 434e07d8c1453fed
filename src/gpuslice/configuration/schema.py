"""The sections of a configuration, their fields and their defaults: the one place that has them.

The section `dialects` is not here: the dialects declare it themselves (see dialect_section.py), and an agent without a
file does not load them.
"""

from __future__ import annotations

# msgspec evaluates the annotations, so these names must be here when the program runs.
from typing import Annotated, Final, Literal

from msgspec import Struct, field

from gpuslice.configuration.forms import (
    Address,
    Count,
    Duration,
    Folder,
    Interval,
    LedgerAddress,
    Listening,
    Name,
    Names,
    Namespace,
    NamespacedName,
    Path,
    Paths,
    Port,
    Price,
    Resource,
    Size,
    Slots,
    Switch,
    TimeZone,
    Url,
    about,
)
from gpuslice.model import devices
from gpuslice.model.gpu_policies import MigMode, Mode, Placement, TaintEffect
from gpuslice.model.values import durations, quantities

API_VERSION: Final = "config.gpuslice.io/v1alpha1"
KIND: Final = "Configuration"


class Section(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """A part of the file."""


class Cluster(Section, frozen=True):
    """The cluster that all of them serve."""

    namespace: Annotated[
        Namespace | None, about("Where gpuslice keeps its lease and certificates.  [default: that of the credentials]")
    ] = None
    kubeconfig: Annotated[
        Path | None,
        about(
            "How to reach the cluster.  [default: the pod's service account; controller and agent also take "
            "$KUBECONFIG and ~/.kube/config, a webhook does without a cluster]"
        ),
    ] = None


class Registration(Section, frozen=True):
    """The webhook configurations, by which the API server calls the webhook. The controller keeps them."""

    name: Annotated[Name, about("What the webhook configurations are called.")] = "gpuslice"
    service: Annotated[
        NamespacedName | None, about("The Service of the webhook. With it or the URL the controller keeps them.")
    ] = None
    url: Annotated[Url | None, about("Where the API server reaches a webhook outside of the cluster.")] = None
    excluded_namespaces: Annotated[
        Names,
        about(
            "Leave pods there alone; no policy limits them.  [default: kube-system, gpuslice's own, and those of "
            "NVIDIA's GPU software and KAI]"
        ),
    ] = ()
    failure_policy: Annotated[
        Literal["Ignore", "Fail"],
        about(
            "What becomes of a pod that asks for a GPU while no webhook answers, where no policy limits it: it starts "
            "as it is written, or is refused. Where a policy limits it, the policy says."
        ),
    ] = "Ignore"
    certificate: Annotated[
        NamespacedName | None, about("The Certificate by which cert-manager keeps the bundles of authorities.")
    ] = None


class Webhook(Section, frozen=True):
    """The admission webhook's server."""

    address: Annotated[Address, about("Listen on this address alone.  [default: on all]")] = ""
    port: Annotated[Port, about("For reviews, by HTTPS.")] = 8443
    metrics_port: Annotated[Port, about("For /metrics, /healthz and /readyz, by HTTP.")] = 8080
    certificate: Annotated[Path | None, about("A PEM file, with its chain.")] = None
    key: Annotated[Path | None, about("The certificate's key, as PEM.")] = None
    hosts: Annotated[
        Names,
        about(
            "Make certificates for these names or addresses, keep them in the cluster, and have the API server trust "
            "them, instead of a certificate from files."
        ),
    ] = ()
    client_authority: Annotated[
        Path | None,
        about(
            "A PEM file: take reviews only from clients with a certificate of this authority, as API servers can "
            "have. May come later, into its folder."
        ),
    ] = None
    client_names: Annotated[Names, about("With a client authority: and with one of these names.")] = ()
    policies: Annotated[Paths, about("Files of SlicePolicy objects that are in force, instead of a cluster's.")] = ()
    drain: Annotated[Duration, about("How long requests are still taken after SIGTERM.")] = "5s"
    max_body: Annotated[Size, about("Of one review.")] = "4MiB"
    max_connections: Annotated[Count, about("When there are more, one of the address that has most goes.")] = 1024
    registration: Registration = field(default_factory=Registration)

    @property
    def drain_seconds(self) -> float:
        return durations.parse_seconds(self.drain)

    @property
    def max_body_bytes(self) -> int:
        return quantities.parse_bytes(self.max_body)


class Controller(Section, frozen=True):
    """What one process does for the whole cluster."""

    address: Annotated[Address, about("Serve /healthz, /readyz and /metrics there.  [default: on all]")] = ""
    port: Annotated[Port, about("At this port.")] = 8080
    template_grace: Annotated[Duration, about("How long a claim template stays that no pod uses.")] = "10m"

    @property
    def template_grace_seconds(self) -> float:
        return durations.parse_seconds(self.template_grace)


class Ledger(Section, frozen=True):
    """Where the controller keeps who held GPUs for how long. Without an address nothing is metered."""

    address: Annotated[
        LedgerAddress | None,
        about("A file of SQLite, as sqlite:/var/lib/gpuslice/ledger.sqlite3, or a database of PostgreSQL."),
    ] = None
    volume_claim: Annotated[
        Name | None,
        about("In the cluster: the PersistentVolumeClaim, in gpuslice's namespace, in which the file of SQLite is."),
    ] = None
    password_secret: Annotated[
        Name | None,
        about("In the cluster: the Secret, in gpuslice's namespace, whose key `password` is that of PostgreSQL."),
    ] = None
    charge_by: Annotated[
        Literal["maximum", "memory", "cores", "whole"],
        about("What a slice is charged by: the larger of its shares of memory and cores, one of them, or whole GPUs."),
    ] = "maximum"
    prices: Annotated[
        dict[str, Price], about("Of an hour of a whole GPU, by model, as {A100-40GB: '2.50', '*': '1'}.")
    ] = field(default_factory=dict)
    currency: Annotated[Name, about("Of the prices.")] = "USD"
    sample: Annotated[Interval, about("Between two writes; so much may be unknown after a crash.")] = "5s"
    keep_entries: Annotated[Duration, about("How long single entries are kept, as usage by pod needs them.")] = "35d"
    keep_hours: Annotated[Duration, about("How long sums by hour are kept; those by day are kept for ever.")] = "100d"


class Budgets(Section, frozen=True):
    """The budget that every namespace has. Others are GPUBudget objects."""

    gpu_minutes_per_namespace: Annotated[
        Count | None, about("Minutes of a whole GPU that each namespace may use in a period.")
    ] = None
    period: Annotated[Literal["day", "week", "month", "year"], about("After which it begins anew.")] = "month"
    time_zone: Annotated[TimeZone, about("In which periods begin at midnight.")] = "UTC"


class Kubelet(Section, frozen=True):
    """An agent that serves the kubelet of its node."""

    enabled: Annotated[Switch, about("Serve the kubelet of this node.")] = False
    folder: Annotated[Folder, about("The kubelet's folder.")] = "/var/lib/kubelet"
    cdi_folder: Annotated[Folder, about("Where the container runtime finds devices.")] = "/var/run/cdi"
    remove_slices_on_exit: Annotated[
        Switch, about("Take the node's ResourceSlices back when the agent ends, for a node that will not come back.")
    ] = False


class Agent(Section, frozen=True):
    """The agent of a node."""

    state: Annotated[
        Folder | None,
        about(
            "Where sessions are kept.  [default: $GPUSLICE_STATE, /run/gpuslice as root, else "
            "$XDG_RUNTIME_DIR/gpuslice]"
        ),
    ] = None
    audit_log: Annotated[Path | None, about("Write who did what there, as JSON lines.")] = None
    metrics: Annotated[Listening, about("Serve /metrics there.")] = "127.0.0.1:9500"
    metrics_access: Annotated[
        Literal["token", "open"],
        about("Show metrics to bearer tokens that the cluster lets get /metrics, or to all who reach them."),
    ] = "token"
    max_pending: Annotated[Count, about("Connections that have not asked yet.")] = 1024
    check_interval: Annotated[Interval, about("Between looks at NVML.")] = "500ms"
    reserve: Annotated[
        Size,
        about(
            "What sessions by hand leave of each GPU. Contexts are part of a session's limit, so nothing need be left."
        ),
    ] = "0"
    kubelet: Kubelet = field(default_factory=Kubelet)

    @property
    def reserve_bytes(self) -> int:
        return quantities.parse_bytes(self.reserve)

    @property
    def check_seconds(self) -> float:
        return durations.parse_seconds(self.check_interval)


class Gpus(Section, frozen=True):
    """What GPUs are offered as. Webhook, agents and the API server reckon with the same names and numbers."""

    backend: Annotated[
        Literal["auto", "dra", "extended"],
        about(
            "Offer the GPUs of nodes as ResourceSlices, for claims (dra), or as extended resources, in slots; auto is "
            "dra where the cluster serves claims for parts of a device, else extended."
        ),
    ] = "auto"
    slots_per_gpu: Annotated[Slots, about("How many slots a shared GPU has.")] = devices.SLOTS_PER_GPU
    shared_resource: Annotated[Resource, about("What slots are called.")] = devices.SHARED_RESOURCE
    whole_resource: Annotated[Resource, about("What whole GPUs are called.")] = devices.WHOLE_RESOURCE
    other_resources: Annotated[
        Names,
        about(
            "Resources in the domains of GPUs that are none, as network cards. Every other one counts as GPUs under a "
            "policy's maximum."
        ),
    ] = devices.OTHER_RESOURCES
    device_classes: Annotated[
        Names,
        about("The device classes whose devices are GPUs. Claims of others, as for network cards, are not counted."),
    ] = devices.GPU_CLASSES
    default_policy: Annotated[
        Mode, about("What a GPU is offered as: shared, as MIG partitions alone, whole, or not at all.")
    ] = Mode.SHARE
    policies: Annotated[
        dict[str, Mode],
        about("The same for single GPUs: by UUID, index or model, the first of these that is there."),
    ] = field(default_factory=dict)
    placement: Annotated[Placement, about("Fill one GPU before the next, or spread over the least loaded.")] = (
        Placement.PACK
    )
    unhealthy: Annotated[TaintEffect, about("What an unhealthy GPU means for pods; NoExecute evicts them.")] = (
        TaintEffect.NO_SCHEDULE
    )
    mig_mode: Annotated[
        MigMode, about("Switch MIG mode of idle GPUs as pods need it, or keep the mode that each is in.")
    ] = MigMode.SWITCH


class Logging(Section, frozen=True):
    """The log of every process, on standard error."""

    form: Annotated[
        Literal["auto", "console", "json"], about("Form of the log; auto is json unless it goes to a terminal.")
    ] = "auto"
    debug: Annotated[Switch, about("Log more; $GPUSLICE_DEBUG does the same.")] = False


class Configuration(Section, frozen=True):
    """The whole file, but for its dialects."""

    api_version: Literal["config.gpuslice.io/v1alpha1"] = API_VERSION
    kind: Literal["Configuration"] = KIND
    cluster: Cluster = field(default_factory=Cluster)
    webhook: Webhook = field(default_factory=Webhook)
    controller: Controller = field(default_factory=Controller)
    agent: Agent = field(default_factory=Agent)
    gpus: Gpus = field(default_factory=Gpus)
    ledger: Ledger = field(default_factory=Ledger)
    budgets: Budgets = field(default_factory=Budgets)
    logging: Logging = field(default_factory=Logging)
