"""The forms that values of a configuration have: their types, what is checked beyond the type, and how both are told.

A value stays as it is written (`10s`, `4MiB`), so that what is shown can be read again. A check looks at values that
are written; the defaults are trusted, and a test looks at them.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args, get_origin

from msgspec import Meta, Struct

from gpuslice.model.values import durations, quantities

if TYPE_CHECKING:
    from collections.abc import Callable


class Form(Struct, frozen=True):
    """What a value must be."""

    #: As a message has it: "a port".
    what: str
    #: What to write instead: "write 0 to 65535".
    remedy: str
    #: In the help of a flag.
    metavar: str = "TEXT"
    #: Complains with a ValueError about a value of the right type.
    check: Callable[[Any], object] = lambda value: value


def about(text: str) -> Meta:
    """What a field is for, in the schema, in the reference and in the help of its flag."""
    return Meta(description=text)


def _duration(least: float = 0.0, most: float = float("inf")) -> Callable[[str], None]:
    def check(text: str) -> None:
        if not least <= durations.parse_seconds(text) <= most:
            raise ValueError(f"{text!r} is out of range; write {least:g}s to {most:g}s")

    return check


def _resource(text: str) -> None:
    from gpuslice.dialects import resource_names

    resource_names.check(text, example="example.com/gpu-slot")


def _pair(text: str) -> None:
    namespace, _, name = text.partition("/")
    if not namespace or not name or "/" in name:
        raise ValueError(f"{text!r} is not a namespace and a name; write for example gpuslice-system/gpuslice-webhook")


def _url(text: str) -> None:
    if not _takes(text):
        raise ValueError(f"{text!r} is no address of a webhook: write for example https://webhook.example:8443")


def _takes(url: str) -> bool:
    """Whether the API server takes it for a webhook's."""
    from urllib.parse import urlsplit

    try:
        found = urlsplit(url)
        return found.scheme == "https" and bool(found.hostname) and found.port != 0 and not set("@?#").intersection(url)
    except ValueError:  # a port that is no number, for example
        return False


def _address(text: str) -> None:
    """Empty, or an IP address: a name could mean several."""
    from ipaddress import ip_address

    if text and text != "localhost":
        ip_address(text)


def _listening(text: str) -> None:
    host, colon, port = text.rpartition(":")
    if text != "none" and (not colon or not host or not port.isdecimal() or int(port) > 65535):
        raise ValueError(f"{text!r} is not where metrics can be served; write ADDRESS:PORT, as 127.0.0.1:9500, or none")


def _ledger(text: str) -> None:
    if not text.startswith(("sqlite:/", "postgresql://", "postgres://")):
        raise ValueError(f"{text!r} is no ledger; write sqlite:/path/to/file or postgresql://user@host/name")


def _price(text: str) -> None:
    import re

    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", text, re.ASCII) is None:
        raise ValueError(f"{text!r} is no price of an hour; write for example '2.50'")


def _zone(text: str) -> None:
    from zoneinfo import ZoneInfo

    try:
        ZoneInfo(text)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"{text!r} is no time zone; write one as Europe/Berlin or UTC") from None


def _namespace(text: str) -> None:
    import re

    if len(text) > 63 or re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", text, re.ASCII) is None:
        raise ValueError(
            f"{text!r} cannot name a namespace; use up to 63 lower-case letters, digits and '-', with a letter or "
            "digit at both ends"
        )


def _named(text: str) -> None:
    if not text:
        raise ValueError("'' is nothing; write a text, or leave the field out")


TEXT: Final = Form("a text", 'write a text, as "..."')
NUMBER: Final = Form("a whole number", "write a whole number, as 4")

Text = Annotated[str, TEXT]
Name = Annotated[str, Form("a name", 'write a text, as "gpuslice"', "NAME", _named)]
Namespace = Annotated[str, Form("a namespace", "write a text, as gpuslice-system", "NAME", _namespace)]
Path = Annotated[str, Form("a path", "write a path, as /etc/gpuslice/file", "FILE", _named)]
Folder = Annotated[str, Form("a path", "write a path, as /run/gpuslice", "DIR", _named)]
Switch = Annotated[bool, Form("true or false", "write true or false")]
Port = Annotated[int, Meta(ge=0, le=65535), Form("a port", "write 0 to 65535", "PORT")]
Count = Annotated[int, Meta(ge=1), Form("a number of at least 1", "write a whole number, as 1024", "NUMBER")]
Slots = Annotated[int, Meta(ge=1, le=1000), Form("a number of slots", "write 1 to 1000", "NUMBER")]
Address = Annotated[
    str, Form("an address", "write an IP address, as 127.0.0.1, or nothing for all of them", "IP", _address)
]
Listening = Annotated[str, Form("an address and a port", "write ADDRESS:PORT, or none", "ADDR|none", _listening)]
Duration = Annotated[str, Form("a duration", "write for example 500ms, 10s or 1h30m", "DURATION", _duration())]
Interval = Annotated[str, Form("a duration", "write 50ms to 60s", "DURATION", _duration(0.05, 60))]
Size = Annotated[int | str, Form("an amount of bytes", "write for example 4MiB", "SIZE", quantities.parse_bytes)]
Resource = Annotated[str, Form("the name of a resource", "write for example example.com/gpu-slot", "NAME", _resource)]
NamespacedName = Annotated[str, Form("a namespace and a name", "write NAMESPACE/NAME", "NAMESPACE/NAME", _pair)]
LedgerAddress = Annotated[
    str, Form("a ledger", "write sqlite:/path/to/file or postgresql://user@host/name", "ADDRESS", _ledger)
]
Price = Annotated[str, Form("a price", "write for example '2.50'", "PRICE", _price)]
TimeZone = Annotated[str, Form("a time zone", "write one as Europe/Berlin or UTC", "ZONE", _zone)]
Url = Annotated[str, Form("an address", "write for example https://webhook.example:8443", "URL", _url)]
Names = Annotated[tuple[str, ...], Form("a list of texts", "write a list, as [one, two]", "NAME")]
Paths = Annotated[tuple[str, ...], Form("a list of paths", "write a list, as [one.yaml, two.yaml]", "FILE")]


def choices(kind: Any) -> tuple[str, ...]:  # noqa: ANN401 - a type
    """What a value of that type can be, if these are a few texts."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return tuple(str(each.value) for each in kind)
    return ()
