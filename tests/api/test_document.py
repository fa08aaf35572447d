"""The OpenAPI document is part of the repository, so that every change of the API is seen in review."""

import json

from tests.api.deployment import Deployment
from tests.api.document import SAVED, served_document


def test_the_saved_document_is_the_one_that_is_served(deployment: Deployment) -> None:
    same = SAVED.read_text() == served_document(deployment)
    assert same, "the API has changed; if that is meant, save it: python -m tests.api.document"


def test_every_operation_is_described_and_says_how_it_fails(deployment: Deployment) -> None:
    for path, operations in json.loads(served_document(deployment))["paths"].items():
        for method, operation in operations.items():
            assert operation["description"], (method, path)
            assert {"400", "401", "403", "404", "409", "413", "503"} <= operation["responses"].keys(), (method, path)
            assert "422" not in operation["responses"]
