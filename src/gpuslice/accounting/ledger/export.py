"""Usage for other programs: CSV, JSON, and the columns of FOCUS, in which the bills of clouds are compared (FinOps).

Money is in the currency of the prices, to the millionth; nothing is rounded through floats.
"""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuslice.accounting.charges import GPU_HOUR
from gpuslice.accounting.ledger import usage as reports
from gpuslice.accounting.ledger.usage import Query, Usage
from gpuslice.accounting.metering import Kind
from gpuslice.system import timestamps

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuslice.accounting.ledger.ledger import Ledger

#: Of FOCUS 1.2, those that it demands of every bill, and of the others those that we know something for.
FOCUS_COLUMNS: Final = (
    *("BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd"),
    *("BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency"),
    *("ChargePeriodEnd", "ChargePeriodStart", "ConsumedQuantity", "ConsumedUnit", "ContractedCost", "EffectiveCost"),
    *("InvoiceIssuerName", "ListCost", "ListUnitPrice", "PricingQuantity", "PricingUnit", "ProviderName"),
    *("PublisherName", "RegionId", "ResourceId", "ResourceName", "ResourceType", "ServiceCategory", "ServiceName"),
    *("SkuId", "SubAccountId", "SubAccountName", "Tags"),
)
_UNIT: Final = "GPU-Hours"


def records(found: Iterable[Usage], currency: str) -> list[dict[str, str]]:
    """One for each group: its names, what kind of time it is, GPU-hours and money."""
    return [
        {
            **each.group,
            "kind": str(each.kind),
            "gpuHours": decimal(each.amount, GPU_HOUR),
            "cost": decimal(each.money, 1_000_000),
            "currency": currency,
        }
        for each in found
    ]


def to_json(found: Iterable[Usage], currency: str) -> str:
    """A list of records. Numbers are texts: a program that reads them as floats decides that itself."""
    return msgspec.json.format(msgspec.json.encode(records(found, currency)), indent=2).decode() + "\n"


def to_csv(found: Sequence[Usage], by: Sequence[str], currency: str) -> str:
    return _csv((*by, "kind", "gpuHours", "cost", "currency"), records(found, currency))


def to_focus(ledger: Ledger, query: Query, currency: str) -> str:
    """Charges by day, namespace and model, as CSV. What was idle is nobody's charge, and is not in it."""
    found = reports.usage(
        ledger,
        Query(start=query.start, until=query.until, by=("day", "namespace", "model"), namespaces=query.namespaces),
    )
    return _csv(FOCUS_COLUMNS, [_focus(each, currency) for each in found if each.kind is Kind.CHARGE])


def decimal(amount: int, whole: int, digits: int = 6) -> str:
    """`amount / whole`, to so many digits, without zeros at the end."""
    scaled = round(Fraction(amount, whole) * 10**digits)
    sign, scaled = ("-" if scaled < 0 else ""), abs(scaled)
    text = f"{sign}{scaled // 10**digits}.{scaled % 10**digits:0{digits}}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _focus(each: Usage, currency: str) -> dict[str, str]:
    day = datetime.fromisoformat(each.group["day"]).replace(tzinfo=UTC)
    month = day.replace(day=1)
    next_month = (month + timedelta(days=32)).replace(day=1)
    namespace, model = each.group["namespace"], each.group["model"]
    cost, hours = decimal(each.money, 1_000_000), decimal(each.amount, GPU_HOUR)
    priced = dict.fromkeys(("BilledCost", "EffectiveCost", "ListCost", "ContractedCost"), cost)
    return priced | {
        "BillingAccountId": "gpuslice",
        "BillingAccountName": "gpuslice",
        "BillingCurrency": currency,
        "BillingPeriodStart": timestamps.time(month),
        "BillingPeriodEnd": timestamps.time(next_month),
        "ChargePeriodStart": timestamps.time(day),
        "ChargePeriodEnd": timestamps.time(day + timedelta(days=1)),
        "ChargeCategory": "Usage",
        "ChargeFrequency": "Usage-Based",
        "ChargeDescription": f"Slices of {model or 'GPUs'} in the namespace {namespace}",
        "ConsumedQuantity": hours,
        "ConsumedUnit": _UNIT,
        "PricingQuantity": hours,
        "PricingUnit": _UNIT,
        "ListUnitPrice": decimal(each.money * GPU_HOUR, each.amount * 1_000_000) if each.amount else "0",
        "InvoiceIssuerName": "gpuslice",
        "ProviderName": "gpuslice",
        "PublisherName": "gpuslice",
        "ResourceId": f"{namespace}/{model}",
        "ResourceName": model,
        "ResourceType": "GPU slice",
        "ServiceCategory": "Compute",
        "ServiceName": "GPU slices",
        "SkuId": model,
        "SubAccountId": namespace,
        "SubAccountName": namespace,
        "Tags": msgspec.json.encode({"namespace": namespace, "model": model}).decode(),
    }


def _csv(columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    # A spreadsheet takes a text that begins so for a formula, and tenants choose names; Kubernetes' names cannot.
    writer.writerows(rows)
    return text.getvalue()
