"""Savings Plans, which moto lacks: requests and answers are checked by botocore's description of the service."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import botocore.session
from botocore.model import OperationModel
from botocore.validate import ParamValidator

PAGE = 2
Reply = tuple[str, list[tuple[str, str]], bytes]


def savings_reply(
    action: str, content: bytes, plans: Sequence[Mapping[str, Any]], rates: Mapping[str, Mapping[str, float]]
) -> Reply:
    """Answer one call, two things a page."""
    operation, asked = _operation(action), json.loads(content or b"{}")
    if problems := ParamValidator().validate(asked, operation.input_shape).generate_report():
        return _told("400 Bad Request", {"message": problems})
    if action == "DescribeSavingsPlans":
        rows = [each for each in plans if each["state"] in asked.get("states", ("active",))]
        answer = _page("savingsPlans", rows, asked)
    else:
        wanted = {each["name"]: each["values"] for each in asked.get("filters", ())}
        answer = _page("searchResults", _rates(rates.get(asked["savingsPlanId"], {}), wanted), asked)
        answer["savingsPlanId"] = asked["savingsPlanId"]
    problems = ParamValidator().validate(answer, operation.output_shape).generate_report()
    assert not problems, problems
    return _told("200 OK", answer)


def _rates(rates: Mapping[str, float], wanted: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """Each type for Linux and for Windows, which costs twice as much."""
    systems = (("Linux/UNIX", 1.0), ("Windows", 2.0))
    rows = [(name, system, usd * times) for name, usd in rates.items() for system, times in systems]
    return [
        {
            "rate": f"{usd:.5f}",
            "currency": "USD",
            "unit": "Hrs",
            "productType": "EC2",
            "serviceCode": "AmazonEC2",
            "usageType": f"BoxUsage:{name}",
            "operation": "RunInstances",
            "properties": [
                {"name": "instanceType", "value": name},
                {"name": "productDescription", "value": system},
                {"name": "region", "value": wanted["region"][0]},
                {"name": "tenancy", "value": "shared"},
            ],
        }
        for name, system, usd in rows
        if system in wanted.get("productDescription", (system,))
    ]


def _page(member: str, rows: Sequence[Mapping[str, Any]], asked: Mapping[str, Any]) -> dict[str, Any]:
    first = int(asked.get("nextToken") or 0)
    answer: dict[str, Any] = {member: list(rows[first : first + PAGE])}
    if first + PAGE < len(rows):
        answer["nextToken"] = str(first + PAGE)
    return answer


@cache
def _operation(action: str) -> OperationModel:
    model: OperationModel = botocore.session.get_session().get_service_model("savingsplans").operation_model(action)
    return model


def _told(status: str, answer: Mapping[str, Any]) -> Reply:
    return status, [("Content-Type", "application/json")], json.dumps(answer).encode()
