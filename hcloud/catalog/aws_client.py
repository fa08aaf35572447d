"""boto3 clients for the two signed AWS calls: queries of the price list, and the history of spot prices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal

from hcloud.core.errors import ProviderUnavailable, missing_library

TIMEOUT_S: Final = 30.0


def aws_client(service: Literal["ec2", "pricing"], region: str, endpoint: str | None, profile: str | None) -> Any:
    """Return a boto3 client with credentials of boto3's own chain (``profile``, environment, role).

    Raises:
        ProviderUnavailable: boto3 is not installed, or the profile does not exist.
    """
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise ProviderUnavailable(missing_library("boto3", "aws")) from error
    with aws_errors(f"AWS {service}"):
        session = boto3.session.Session(profile_name=profile)
        config = Config(
            retries={"mode": "standard", "total_max_attempts": 4}, connect_timeout=TIMEOUT_S, read_timeout=TIMEOUT_S
        )
        if service == "ec2":
            return session.client("ec2", region_name=region, endpoint_url=endpoint, config=config)
        return session.client("pricing", region_name=region, endpoint_url=endpoint, config=config)


@contextmanager
def aws_errors(what: str) -> Iterator[None]:
    """Convert exceptions of boto3 to ProviderUnavailable."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        details = error.response.get("Error", {})
        message = f"{what} refused: {details.get('Code', 'error')} ({details.get('Message', '')})"
        raise ProviderUnavailable(message) from error
    except BotoCoreError as error:
        raise ProviderUnavailable(f"{what} cannot be read: {error}") from error
