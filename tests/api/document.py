"""The OpenAPI document as it is saved: ``python -m tests.api.document`` writes ``docs/openapi.json`` anew."""

import json
import tempfile
from pathlib import Path

from tests.api.deployment import ROOT, Deployment

SAVED = Path(__file__).resolve().parents[2] / "docs" / "openapi.json"


def served_document(deployment: Deployment) -> str:
    """The document a deployment serves, without the version (a release changes nothing about the API)."""
    served = deployment.client(ROOT).get("/openapi.json").json()
    served["info"]["version"] = "0"
    return json.dumps(served, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        SAVED.write_text(served_document(Deployment(Path(home))))
