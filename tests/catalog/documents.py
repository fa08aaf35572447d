"""Price lists in the clouds' formats, with prices that the test chooses."""

import csv
import io
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

CSV_COLUMNS = (
    "SKU", "OfferTermCode", "RateCode", "TermType", "PriceDescription", "EffectiveDate", "StartingRange", "EndingRange",
    "Unit", "PricePerUnit", "Currency", "RelatedTo", "LeaseContractLength", "PurchaseOption", "OfferingClass",
    "Product Family", "serviceCode", "Location", "Location Type", "Instance Type", "Current Generation",
    "Instance Family", "vCPU", "Physical Processor", "Clock Speed", "Memory", "Storage", "Network Performance",
    "Processor Architecture", "Tenancy", "Operating System", "License Model", "usageType", "operation",
    "CapacityStatus", "GPU", "MarketOption", "Normalization Size Factor", "Pre Installed S/W", "Region Code",
    "serviceName",
)  # fmt: skip
PLAIN = {
    "TermType": "OnDemand",
    "Unit": "Hrs",
    "Currency": "USD",
    "vCPU": "2",
    "Memory": "8 GiB",
    "Physical Processor": "Intel Xeon Platinum 8175",
    "Tenancy": "Shared",
    "Operating System": "Linux",
    "License Model": "No License required",
    "CapacityStatus": "Used",
    "MarketOption": "OnDemand",
    "Pre Installed S/W": "NA",
    "serviceCode": "AmazonEC2",
}
RESERVED = {
    "TermType": "Reserved",
    "LeaseContractLength": "1yr",
    "PurchaseOption": "No Upfront",
    "OfferingClass": "standard",
}


def row(kind: str, usd: float | str, **changes: str) -> dict[str, str]:
    """A row of the bulk file: a plain on-demand Linux instance, with ``changes``."""
    return {**PLAIN, "Instance Type": kind, "PricePerUnit": str(usd), **changes}


def bulk_csv(rows: Sequence[Mapping[str, str]], version: str = "20261101000000") -> str:
    """A region's bulk file."""
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(["FormatVersion", "v1.0"])
    writer.writerow(["Disclaimer", "This pricing list is for informational purposes only."])
    writer.writerow(["Publication Date", "2026-11-01T00:00:00Z"])
    writer.writerow(["Version", version])
    writer.writerow(["OfferCode", "AmazonEC2"])
    writer.writerow(CSV_COLUMNS)
    writer.writerows([each.get(name, "") for name in CSV_COLUMNS] for each in rows)
    return out.getvalue()


def region_index(versions: Mapping[str, str]) -> dict[str, Any]:
    """AWS's index of regions, with the path of each one's current edition."""
    return {
        "formatVersion": "v1.0",
        "disclaimer": "This pricing list is for informational purposes only.",
        "publicationDate": "2026-11-01T00:00:00Z",
        "regions": {
            region: {
                "regionCode": region,
                "currentVersionUrl": f"/offers/v1.0/aws/AmazonEC2/{version}/{region}/index.json",
            }
            for region, version in versions.items()
        },
    }


def product(kind: str, usd: float, commit_1y: float | None = None, **attributes: str) -> str:
    """One element of GetProducts' PriceList."""

    def term(price: float, **of: str) -> dict[str, Any]:
        dimension = {
            "unit": "Hrs",
            "beginRange": "0",
            "endRange": "Inf",
            "description": f"${price} per Linux {kind} Instance Hour",
            "appliesTo": [],
            "rateCode": "X.JRTCKXETXF.6YS6EN2CT7",
            "pricePerUnit": {"USD": f"{price:.10f}"},
        }
        return {"priceDimensions": {"X.JRTCKXETXF.6YS6EN2CT7": dimension}, "sku": "X", "termAttributes": of}

    terms: dict[str, Any] = {"OnDemand": {"X.JRTCKXETXF": term(usd)}}
    if commit_1y is not None:
        of = {"LeaseContractLength": "1yr", "OfferingClass": "standard", "PurchaseOption": "No Upfront"}
        terms["Reserved"] = {"X.4NA7Y494T4": term(commit_1y, **of)}
    described = {
        "instanceType": kind, "vcpu": "2", "memory": "8 GiB", "physicalProcessor": "AWS Graviton2 Processor",
        "tenancy": "Shared", "operatingSystem": "Linux", "preInstalledSw": "NA", "capacitystatus": "Used",
        "marketoption": "OnDemand", "licenseModel": "No License required", **attributes,
    }  # fmt: skip
    found = {"productFamily": "Compute Instance", "attributes": described, "sku": "X"}
    return json.dumps(
        {"product": found, "serviceCode": "AmazonEC2", "terms": terms, "version": "20261101000000",
         "publicationDate": "2026-11-01T00:00:00Z"}
    )  # fmt: skip


def sku(
    description: str, usd: float, *regions: str, usage: str = "OnDemand", currency: str = "USD", unit: str = "h"
) -> dict[str, Any]:
    """One SKU of the Cloud Billing Catalog."""
    part = "RAM" if " Ram " in description else "CPU"
    whole, nanos = int(usd), round((usd - int(usd)) * 1e9)
    identity = f"{zlib.crc32(f'{description} {regions}'.encode()):08X}"
    return {
        "name": f"services/6F81-5844-456A/skus/{identity}",
        "skuId": identity,
        "description": description,
        "category": {
            "serviceDisplayName": "Compute Engine",
            "resourceFamily": "Compute",
            "resourceGroup": part,
            "usageType": usage,
        },
        "serviceRegions": list(regions) or ["us-central1"],
        "pricingInfo": [
            {
                "summary": "",
                "pricingExpression": {
                    "usageUnit": unit,
                    "usageUnitDescription": "hour",
                    "baseUnit": "s",
                    "baseUnitConversionFactor": 3600.0,
                    "displayQuantity": 1.0,
                    "tieredRates": [
                        {
                            "startUsageAmount": 0.0,
                            "unitPrice": {"currencyCode": currency, "units": str(whole), "nanos": nanos},
                        }
                    ],
                },
                "currencyConversionRate": 1.0,
                "effectiveTime": "2026-11-01T00:00:00.000000Z",
            }
        ],
        "serviceProviderName": "Google",
    }


def n2_skus(vcpu: float = 0.031611, gib: float = 0.004237, *regions: str) -> list[dict[str, Any]]:
    """On-demand and spot prices (a fifth) of n2."""
    return [
        sku("N2 Instance Core running in Americas", vcpu, *regions),
        sku("N2 Instance Ram running in Americas", gib, *regions, unit="GiBy.h"),
        sku("Spot Preemptible N2 Instance Core running in Americas", vcpu / 5, *regions, usage="Preemptible"),
        sku(
            "Spot Preemptible N2 Instance Ram running in Americas",
            gib / 5,
            *regions,
            usage="Preemptible",
            unit="GiBy.h",
        ),
    ]


def spot_history(entries: Sequence[tuple[str, str, float, str]], next_token: str = "") -> str:
    """EC2's response to DescribeSpotPriceHistory; entries are type, zone, price and time."""
    items = "".join(
        f"<item><instanceType>{kind}</instanceType><productDescription>Linux/UNIX</productDescription>"
        f"<spotPrice>{usd:.6f}</spotPrice><timestamp>{at}</timestamp><availabilityZone>{zone}</availabilityZone></item>"
        for kind, zone, usd, at in entries
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>'
        '<DescribeSpotPriceHistoryResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>r</requestId>'
        f"<spotPriceHistorySet>{items}</spotPriceHistorySet><nextToken>{next_token}</nextToken>"
        "</DescribeSpotPriceHistoryResponse>"
    )
