"""API clients of one region. botocore retries reads; writes are sent once.

EC2 reports a launch without capacity as HTTP 500, which botocore would retry blindly. A write without a reply must be
repeated by the owner of its intent, with the same client token.
"""

from __future__ import annotations

import logging
import threading
from datetime import datetime
from functools import cache
from typing import Any

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from botocore.utils import parse_timestamp

from hcloud.core.errors import ConfigError
from providers.ec2.settings import Ec2Settings
from providers.ec2.trimmed_listings import PARSE_EVENT, TrimmedModels, drop_unread_fields

CONNECT_TIMEOUT_S = 10.0


@cache
def _service_models() -> TrimmedModels:
    """Return service models shared by all providers of the process: EC2's alone takes several megabytes."""
    return TrimmedModels()


def _parse_time(text: Any) -> datetime:
    """Parse a timestamp. botocore's own parser takes a third of the time needed to list thousands of instances."""
    try:
        return datetime.fromisoformat(text)
    except (TypeError, ValueError):  # Unix seconds, or an HTTP date
        time: datetime = parse_timestamp(text)
        return time


class Clients:
    """Creates clients per service on first use. Safe to use from several threads."""

    def __init__(self, provider: str, settings: Ec2Settings) -> None:
        """Open a session. Raises ConfigError: the configured profile does not exist."""
        self._settings = settings
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, bool], Any] = {}
        # botocore's debug log contains whole requests: the worker's key, user data, signatures.
        for name in ("boto3", "botocore"):
            logging.getLogger(name).setLevel(logging.WARNING)
        try:
            core = botocore.session.Session(profile=settings.profile)
            core.register_component("data_loader", _service_models())
            self._session = boto3.Session(botocore_session=core, region_name=settings.region)
            core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_parse_time)
            core.get_scoped_config()  # raises if the profile does not exist
        except BotoCoreError as error:
            raise ConfigError(f"{error}", where=f"providers.{provider}.settings.profile") from error

    def reading(self, service: str = "ec2") -> Any:
        """Return a client that makes up to ``read_attempts`` attempts per call."""
        return self._client(service, retrying=True)

    def writing(self, service: str = "ec2") -> Any:
        """Return a client that makes one attempt per call."""
        return self._client(service, retrying=False)

    def _client(self, service: str, *, retrying: bool) -> Any:
        with self._lock:
            key = (service, retrying)
            if key not in self._clients:
                attempts = self._settings.read_attempts if retrying else 1
                config = Config(
                    connect_timeout=min(CONNECT_TIMEOUT_S, self._settings.timeout_s),
                    read_timeout=self._settings.timeout_s,
                    retries={"mode": "standard", "total_max_attempts": attempts},
                    max_pool_connections=32,
                    user_agent_extra="hcloud",
                )
                # boto3's types depend on literal service names, so this call is untyped.
                make: Any = self._session.client
                client = make(service, endpoint_url=self._settings.endpoint_url, config=config)
                if service == "ec2":
                    client.meta.events.register(PARSE_EVENT, drop_unread_fields)
                self._clients[key] = client
            return self._clients[key]
