"""Connections to the services of one region: reads are retried by the library, launches and ends never.

A launch that is out of capacity is HTTP 500, which the library would repeat blindly; and a write without a reply
must be repeated with its token by the owner of the intent. So writes get exactly one try here.
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
    """Return the descriptions of services, one for all providers of the process: EC2's alone is several megabytes."""
    return TrimmedModels()


def _parse_time(text: Any) -> datetime:
    """Read a time. The library's own reader takes a third of the time of listing thousands of machines."""
    try:
        return datetime.fromisoformat(text)
    except (TypeError, ValueError):  # seconds, or a form of HTTP's
        time: datetime = parse_timestamp(text)
        return time


class Clients:
    """Clients by service, client when first needed; usable from several threads."""

    def __init__(self, provider: str, settings: Ec2Settings) -> None:
        """Raises ConfigError: the named profile does not exist."""
        self._settings = settings
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, bool], Any] = {}
        # Its debug log holds whole requests: the worker's key, user data, signatures.
        for name in ("boto3", "botocore"):
            logging.getLogger(name).setLevel(logging.WARNING)
        try:
            core = botocore.session.Session(profile=settings.profile)
            core.register_component("data_loader", _service_models())
            self._session = boto3.Session(botocore_session=core, region_name=settings.region)
            core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_parse_time)
            core.get_scoped_config()  # a profile that does not exist is noticed here
        except BotoCoreError as error:
            raise ConfigError(f"{error}", where=f"providers.{provider}.settings.profile") from error

    def reading(self, service: str = "ec2") -> Any:
        """Return a client that tries calls ``read_attempts`` times."""
        return self._client(service, retrying=True)

    def writing(self, service: str = "ec2") -> Any:
        """Return a client that tries calls once."""
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
                # Typed by name of the service only, so not typed at all here.
                make: Any = self._session.client
                client = make(service, endpoint_url=self._settings.endpoint_url, config=config)
                if service == "ec2":
                    client.meta.events.register(PARSE_EVENT, drop_unread_fields)
                self._clients[key] = client
            return self._clients[key]
