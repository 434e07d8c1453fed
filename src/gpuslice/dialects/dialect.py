"""What a dialect declares of itself. Reading, the API server's match conditions, admission policies, settings, the
schema of policies and metrics are all derived from it, so that a dialect is one module in `known/`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

import msgspec

from gpuslice.dialects import cel, forms

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuslice.dialects.pod_values import Said
    from gpuslice.model.policies import Backend, Rule
    from gpuslice.model.requests import Request
    from gpuslice.model.settings import Setting, Settings

_Value = TypeVar("_Value")
_WHOLE_NUMBER: Final = forms.WholeNumber()


class Asked(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a container asked for in one dialect."""

    requests: tuple[Request, ...]
    #: The resources that said it: what takes their place is the backend's to write.
    resources: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    #: What the pod asks and no slice of ours keeps, as a denial tells it. A scheduler that serves the pod itself may.
    unkept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Resource:
    """A resource of a container."""

    name: str
    form: forms.AmountForm = _WHOLE_NUMBER
    #: It means something to others. It asks for nothing here, and a warning says so.
    unread: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ResourceFamily:
    """Resources whose names say what they are: all that begin with a prefix, and may have to end with a suffix."""

    prefix: str
    #: What follows the prefix, the suffix included, as a regular expression both for Python and for RE2. Everything
    #: else is malformed.
    form: str
    #: What that is, as a complaint has it: "a MIG profile".
    what: str
    examples: tuple[str, ...]
    suffix: str = ""
    #: What ends so is another family's.
    excluded_suffix: str = ""

    def has(self, name: str) -> bool:
        """Whether the resource is of the family, well-formed or not."""
        of_family = name.startswith(self.prefix) and name.endswith(self.suffix)
        return of_family and not (self.excluded_suffix and name.endswith(self.excluded_suffix))

    def has_in_cel(self, name: str) -> str:
        """The same of an expression for a name."""
        clauses = [f"{name}.startsWith({cel.quote(self.prefix)})"]
        if self.suffix:
            clauses.append(f"{name}.endsWith({cel.quote(self.suffix)})")
        if self.excluded_suffix:
            clauses.append(f"!{name}.endsWith({cel.quote(self.excluded_suffix)})")
        return cel.all_of(clauses)


@dataclass(frozen=True, slots=True)
class Unkept:
    """Why gpuslice cannot keep what a field asks, and what to do instead. Texts that have `kept` in them it can."""

    reason: str
    remedy: str
    kept: str | None = None

    def keeps(self, text: str) -> bool:
        return self.kept is not None and self.kept in text


@dataclass(frozen=True, slots=True, eq=False)
class PodField(Generic[_Value]):
    """An annotation or a label of the pod."""

    name: str
    form: forms.TextForm[_Value]
    #: Whether it asks for a GPU by itself. What does not is read where the pod speaks the dialect anyway.
    asks: bool = False
    kind: Literal["annotations", "labels"] = "annotations"
    #: Where the configuration's section `dialects` can give it another name, as `castslice.annotations.optimize`.
    setting: str = ""
    #: It means something to others. It asks for nothing here, and a warning says so.
    unread: bool = False
    #: It asks for what gpuslice cannot do. The pod is denied, unless it is left to a scheduler that can.
    unkept: Unkept | None = None

    def name_in(self, settings: Settings) -> str:
        found: str = settings.dialects.get(self.setting, self.name) if self.setting else self.name
        return found

    def path_in(self, settings: Settings) -> str:
        """As a message names it."""
        return f"metadata.{self.kind}[{self.name_in(settings)}]"


@dataclass(frozen=True, slots=True, eq=False)
class TargetField(PodField[tuple[str, ...]]):
    """Names the containers that the pod's fields ask for."""

    form: forms.ContainerNames


Field = Resource | PodField[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusive:
    """Two fields that ask for the same. A pod has at most one of them."""

    first: Field
    second: Field
    what: str = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A field that means nothing without one of some others, which are of its kind: resources, or fields of the pod."""

    field: Field
    any_of: tuple[Field, ...]
    #: Of a resource: only an amount that is less than a GPU needs them.
    of_shares: bool = False
    #: May hold `{amount}`.
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerScheduler:
    """A scheduler that serves pods in the dialect itself, where its project is installed."""

    #: As `spec.schedulerName` has it.
    name: str
    #: What only it knows of, and no other scheduler does for a pod.
    knows: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerGate:
    """A scheduling gate by which a project's own controller holds a pod back, and a finalizer of the same name. Where
    that controller does not serve the pod, nobody else takes them off.
    """

    name: str
    #: Whose controller it is.
    of: str


class WholeGpus(Enum):
    """What the resource that counts whole GPUs (`nvidia.com/gpu`) is to a dialect."""

    CONTRADICT = auto()  # another way of asking, refused in one container with the dialect
    COUNT = auto()  # says how many shares there are
    ASK = auto()  # asks in the dialect, on pods that `switch` or a policy's OptIn chooses


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dialect:
    """One way of asking for a GPU."""

    name: str
    #: What the container asks for. Every value has its form by then, and the fields agree with each other.
    read: Callable[[Said], Asked]
    #: How the names of its resources begin. Pods with such a resource leave the API server, so this may be wider than
    #: the names below: a name that we do not know is seen by policies, at least.
    prefixes: tuple[str, ...] = ()
    resources: tuple[Resource, ...] = ()
    family: ResourceFamily | None = None
    fields: tuple[PodField[Any], ...] = ()
    #: Without it, and where a pod does not say, the fields ask for the pod's first container.
    target: TargetField | None = None
    exclusive: tuple[Exclusive, ...] = ()
    needs: tuple[Need, ...] = ()
    whole_gpus: WholeGpus = WholeGpus.CONTRADICT
    #: With WholeGpus.ASK: the dialect is spoken where this is "true".
    switch: PodField[str] | None = None
    #: The bytes that 1 means where it says memory, for complaints in its words. It may be the installation's choice.
    memory_unit: int | Callable[[Settings], int] = 1
    #: Whether a container can say in it how much of the compute it wants.
    says_cores: bool = True
    #: None: claims where the cluster serves them, else slots.
    default_backend: Backend | None = None
    #: A backend that is other software and reads this dialect itself.
    also_read_by: Backend | None = None
    schedulers: tuple[PeerScheduler, ...] = ()
    gates: tuple[PeerGate, ...] = ()
    settings: tuple[Setting[Any], ...] = ()
    #: The settings as a policy's rule changes them.
    settings_under: Callable[[Settings, Rule], Settings] | None = None
    #: The resources that show that a container speaks it.
    signs: tuple[Resource, ...] = field(init=False)
    #: The fields of a pod that ask by themselves.
    asking: tuple[PodField[Any], ...] = field(init=False)
    #: The fields of a pod that are read, and all of them.
    read_fields: tuple[PodField[Any], ...] = field(init=False)
    pod_fields: tuple[PodField[Any], ...] = field(init=False)
    #: Of the fields, those that ask for what gpuslice cannot do.
    unkept: tuple[PodField[Any], ...] = field(init=False)
    #: The names of what is not read.
    unread: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        """A declaration that contradicts itself is a mistake in its module."""
        self._derive()
        names = [resource.name for resource in self.resources] + ([self.family.prefix] if self.family else [])
        for name in names:
            if not name.startswith(self.prefixes):
                raise ValueError(f"{self.name}: no prefix of {name} is declared, so that no pod with it would be read")
        if any(each.setting and (each.asks or each.unread) for each in self.fields):
            raise ValueError(
                f"{self.name}: a field that asks by itself, or is not read, cannot be renamed by a setting"
            )
        if (self.whole_gpus is WholeGpus.ASK) != (self.switch is not None):
            raise ValueError(f"{self.name}: a dialect that asks by whole GPUs needs a switch, and no other has one")

    def _derive(self) -> None:
        """What is asked for at every pod is found once."""
        derived = {
            "signs": tuple(each for each in self.resources if not each.unread),
            "asking": tuple(each for each in self.fields if each.asks),
            "read_fields": tuple(each for each in self.fields if not each.unread and each.unkept is None),
            "pod_fields": self.fields if self.target is None else (*self.fields, self.target),
            "unkept": tuple(each for each in self.fields if each.unkept is not None),
            "unread": frozenset(
                [each.name for each in self.fields if each.unread]
                + [each.name for each in self.resources if each.unread]
            ),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)
