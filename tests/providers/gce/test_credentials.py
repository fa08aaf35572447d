"""Credentials: found or said to be missing, sent to the endpoint only, and never part of what is told."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.oauth2 import service_account

from hcloud.core.errors import ProviderUnavailable
from tests.providers.gce.bench import GceBench

ACCOUNT = "hcloud-daemon@hcloud-testing.iam.gserviceaccount.com"


def test_missing_default_credentials_are_said_to_be_missing(
    bench: GceBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "gone.json"))
    provider = bench.plain(credentials="default")
    with pytest.raises(ProviderUnavailable, match="no credentials for Google Cloud"):
        provider.instances(bench.owner)
    with pytest.raises(ProviderUnavailable, match="no credentials for Google Cloud"):
        provider.launch(bench.request())


@pytest.mark.parametrize("content", ["", "{}", '{"type": "service_account", "private_key": "very secret"}'])
def test_key_file_that_is_none_is_said_to_be_none_without_its_contents(
    bench: GceBench, tmp_path: Path, content: str
) -> None:
    key = tmp_path / "key.json"
    key.write_text(content)
    with pytest.raises(ProviderUnavailable, match="no credentials for Google Cloud") as caught:
        bench.plain(credentials=str(key)).instances(bench.owner)
    assert "very secret" not in str(caught.value)


def test_key_file_signs_its_own_tokens_so_that_no_other_host_is_asked(
    bench: GceBench, tmp_path: Path, strayed: list[str]
) -> None:
    provider = bench.plain(credentials=str(_key_file(tmp_path)))
    provider.launch(bench.request())
    assert provider.instances(bench.owner).instances
    [token] = {each for each in bench.server.authorizations if each}
    claims = _claims(token.removeprefix("Bearer "))
    assert claims["iss"] == ACCOUNT
    assert claims["scope"] == "https://www.googleapis.com/auth/compute"
    assert strayed == []


def test_the_librarys_own_credentials_would_ask_another_host(
    bench: GceBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strayed: list[str]
) -> None:
    """A seeded fault: without our wrapping, the regions an account may be used in are looked up elsewhere."""

    def load(named: str) -> Any:
        key = service_account.Credentials.from_service_account_file(  # type: ignore[no-untyped-call]
            named, scopes=["https://www.googleapis.com/auth/compute"]
        )
        key._set_blocking_regional_access_boundary_lookup()  # else a thread of its own does it, later
        return key

    monkeypatch.setattr("providers.gce.api.load_credentials", load)
    bench.plain(credentials=str(_key_file(tmp_path))).instances(bench.owner)
    assert "iamcredentials.googleapis.com" in strayed
    strayed.clear()


def _claims(token: str) -> dict[str, Any]:
    part = token.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return claims


def _key_file(tmp_path: Path) -> Path:
    made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = made.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    plain = {
        "type": "service_account",
        "client_email": ACCOUNT,
        "private_key_id": "1",
        "private_key": pem.decode(),
        "token_uri": "https://oauth2.googleapis.com/token",
    }
    file = tmp_path / "key.json"
    file.write_text(json.dumps(plain))
    return file
