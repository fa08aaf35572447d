"""AWS price lists of EC2 in both formats: the bulk CSV file of a region, and GetProducts.

Only shared instances with plain Linux are read: on-demand prices, and standard reservations without upfront payment as
hourly prices of commitments. Formats: AWS Billing User Guide, "Reading the price list files"; AWS Price List API
Reference, "GetProducts".
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from hcloud.catalog.prices import Key, PricePlan, TypeSize, is_price
from hcloud.catalog.reading import PriceReading, text_of
from hcloud.core.errors import ProviderUnavailable

SOURCE: Final = "AWS price list"
_BURSTABLE: Final = ("t1.", "t2.", "t3.", "t3a.", "t4g.")
PLANS: Final = (PricePlan.ON_DEMAND, PricePlan.COMMIT_1Y, PricePlan.COMMIT_3Y)
_TERMS: Final = {"1yr": PricePlan.COMMIT_1Y, "3yr": PricePlan.COMMIT_3Y}
# Column of the CSV file: attribute of a product.
_COLUMNS: Final = {
    "Instance Type": "instanceType",
    "vCPU": "vcpu",
    "Memory": "memory",
    "Physical Processor": "physicalProcessor",
    "Tenancy": "tenancy",
    "Operating System": "operatingSystem",
    "Pre Installed S/W": "preInstalledSw",
    "CapacityStatus": "capacitystatus",
}
_OPTIONAL: Final = {"GPU": "gpu", "MarketOption": "marketoption", "License Model": "licenseModel"}
_REQUIRED: Final = {
    "tenancy": ("Shared",),
    "operatingSystem": ("Linux",),
    "preInstalledSw": ("NA",),
    "capacitystatus": ("Used",),
    "marketoption": ("OnDemand", ""),
    "licenseModel": ("No License required", "NA", ""),
}
FILTERS: Final = (
    ("tenancy", "Shared"),
    ("operatingSystem", "Linux"),
    ("preInstalledSw", "NA"),
    ("capacitystatus", "Used"),
)
"""Filters of GetProducts, in addition to the region."""
_CSV_COLUMNS: Final = ("TermType", "Unit", "PricePerUnit", "Currency", *_COLUMNS)
_MEMORY: Final = re.compile(r"([0-9][0-9,]*(?:\.[0-9]+)?) (GiB|MiB)", re.IGNORECASE)


def csv_version(lines: Iterator[str]) -> tuple[str, list[str]]:
    """Read the file's header up to its first row; return its version and the names of its columns.

    Raises:
        ProviderUnavailable: it is not a price list.
    """
    version = ""
    for line in lines:
        row = next(csv.reader([line]), [])
        if row[:1] == ["Version"] and len(row) > 1:
            version = row[1]
        if row[:1] == ["SKU"]:
            missing = [name for name in _CSV_COLUMNS if name not in row]
            if missing:
                raise ProviderUnavailable(f"the {SOURCE} has no column {missing[0]!r}; its format has changed")
            return version, row
    raise ProviderUnavailable(f"the {SOURCE} ended before its table began; no price was read from it")


def read_csv(lines: Iterable[str], region: str, reading: PriceReading) -> None:
    """Read the prices of one region's CSV file line by line: a file has hundreds of megabytes.

    Raises:
        ProviderUnavailable: it is not a price list, or has no price of a plain Linux instance.
    """
    rest = iter(lines)
    version, columns = csv_version(rest)
    index_of = {name: columns.index(name) for name in columns}
    before = len(reading.quotes)
    for row in csv.reader(line for line in rest if '"Shared"' in line and '"Linux"' in line):
        if len(row) != len(columns):
            raise ProviderUnavailable(f"the {SOURCE} of {region} is truncated in the middle of a line")
        _add_row({name: row[at] for name, at in index_of.items()}, region, reading)
    _finish(region, version, reading, before)


def read_products(products: Iterable[str], region: str, reading: PriceReading) -> None:
    """Read the prices of GetProducts' responses (``PriceList``: one JSON document per product).

    Raises:
        ProviderUnavailable: a response has an unknown format, or there is no price of a plain Linux instance.
    """
    before, version = len(reading.quotes), ""
    for text in products:
        try:
            product = json.loads(text)
            attributes = product["product"]["attributes"]
            terms = list(_terms(product["terms"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ProviderUnavailable(f"the {SOURCE} has an unknown format ({type(error).__name__})") from error
        version = max(version, text_of(product, "version"))
        for plan, usd in terms:
            _add(attributes, plan, usd, region, reading)
    _finish(region, version, reading, before)


def _finish(region: str, version: str, reading: PriceReading, before: int) -> None:
    if len(reading.quotes) == before:
        raise ProviderUnavailable(f"the {SOURCE} of {region} has no price of a plain Linux instance; nothing was read")
    reading.whole |= {("ec2", region, plan) for plan in PLANS}
    if version:
        reading.versions[version_key(region)] = version


def version_key(region: str) -> str:
    """Return the key in ``versions`` for the edition of a region's list."""
    return f"ec2 {region}"


def _add_row(row: Mapping[str, str], region: str, reading: PriceReading) -> None:
    attributes = {name: row[column] for column, name in _COLUMNS.items()}
    attributes |= {name: row.get(column, "") for column, name in _OPTIONAL.items()}
    plan = _plan(row["TermType"], row)
    if plan is None or row["Unit"] not in ("Hrs", "Hours"):
        return
    if row["Currency"] != "USD":
        reading.left_out[f"in {row['Currency']}, not USD"] += 1
        return
    _add(attributes, plan, _number(row["PricePerUnit"]), region, reading)


def _plan(term: str, attributes: Mapping[str, str]) -> PricePlan | None:
    if term == "OnDemand":
        return PricePlan.ON_DEMAND
    plain = attributes.get("OfferingClass") == "standard" and attributes.get("PurchaseOption") == "No Upfront"
    return _TERMS.get(attributes.get("LeaseContractLength", "").replace(" ", "")) if plain else None


def _terms(terms: Mapping[str, Any]) -> Iterator[tuple[PricePlan, float]]:
    for term, offers in terms.items():
        for each in offers.values():
            plan = _plan(term, each.get("termAttributes", {}))
            for dimension in each["priceDimensions"].values():
                if plan is not None and dimension["unit"] in ("Hrs", "Hours") and "USD" in dimension["pricePerUnit"]:
                    yield plan, _number(dimension["pricePerUnit"]["USD"])


def _add(attributes: Mapping[str, str], plan: PricePlan, usd: float, region: str, reading: PriceReading) -> None:
    if any(attributes.get(name, "") not in values for name, values in _REQUIRED.items()):
        return
    kind = attributes["instanceType"]
    if "." not in kind or (plan is not PricePlan.ON_DEMAND and not is_price(usd)):
        return  # a dedicated host, or a reservation that is paid upfront
    reading.add(Key("ec2", region, kind, plan), usd)
    memory = _MEMORY.fullmatch(attributes["memory"].strip())
    vcpus = _number(attributes["vcpu"])
    if memory is not None and vcpus > 0:
        mib = _number(memory[1].replace(",", "")) * (1024 if memory[2].lower() == "gib" else 1)
        arm = "Graviton" in attributes.get("physicalProcessor", "") or kind.startswith("a1.")
        gpus = attributes.get("gpu", "")  # a number, or a word
        reading.sizes["ec2", kind] = TypeSize(
            vcpus=vcpus,
            memory_mib=round(mib),
            burstable=kind.startswith(_BURSTABLE),
            arch="arm64" if arm else "x86_64",
            gpus=int(gpus) if gpus.isdigit() else 0,
        )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
