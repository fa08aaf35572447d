"""Requests made up from the API's own document: none ends in a 5xx (but 503), and every answer is as documented."""

import json
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from hcloud.api import build_app
from tests.api.deployment import ROOT, Deployment, job, sentence
from tests.api.document import SAVED

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = settings(
    max_examples=5 if settings.default.derandomize else 40, deadline=None, suppress_health_check=list(HealthCheck)
)
"""The same few each time; `make soak` makes up others."""


@pytest.fixture(scope="module")
def lived_in(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """A deployment with jobs in several states and machines, so that made-up requests meet something."""
    made = Deployment(Path(tmp_path_factory.mktemp("fuzz")))
    client = made.client(ROOT)
    client.post("/v1/jobs", json=[job("ends"), job("fails", command="exit 3"), job("waits", resources={"vcpus": 64})])
    made.cycle_until(lambda: made.store.job("job-2").finished_at)
    client.post("/v1/jobs", json=[job("runs", command=["sleep", "1000"], env={"A": "b"}, tags={"team": "x"})])
    made.cycle(5)
    return made


@pytest.fixture(scope="module")
def document(lived_in: Deployment) -> schemathesis.BaseSchema:
    """The API's document, over which requests are made up, asked as an admin."""
    app = lived_in.client(ROOT).app
    return schemathesis.openapi.from_asgi("/openapi.json", app)


OPERATIONS = [
    (method.upper(), path)
    for path, operations in json.loads(SAVED.read_text())["paths"].items()
    for method in operations
]


@pytest.mark.hypothesis
@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_no_made_up_request_ends_in_a_server_error(
    document: schemathesis.BaseSchema, method: str, path: str, mode: GenerationMode
) -> None:
    try:
        requests = document[path][method].as_strategy(generation_mode=mode)
        EXAMPLES(given(requests)(lambda case: _ask(case)))()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE, "a valid request can always be made"


def _ask(case: schemathesis.Case) -> None:
    if isinstance(case.query, dict):
        case.query.pop("wait_s", None)  # patience is tested elsewhere
    response = case.call()
    if response.status_code == 503:
        assert response.headers["retry-after"]
        return
    case.validate_response(response, checks=CHECKS)
    if response.status_code >= 400:
        assert sentence(response)


def test_the_fuzzing_sees_a_handler_that_fails(deployment: Deployment) -> None:
    app = build_app(deployment.context)

    @app.get("/v1/broken")
    def broken(number: int) -> dict[str, float]:
        return {"quotient": 1 / (number - number)}

    faulty = schemathesis.openapi.from_asgi("/openapi.json", deployment.client(ROOT, app).app)
    case = faulty["/v1/broken"]["GET"].Case(query={"number": 1})
    with pytest.raises(ZeroDivisionError):
        case.validate_response(case.call(), checks=CHECKS)
