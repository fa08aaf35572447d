"""How a machine comes by the worker's key: from an encrypted parameter it may read under its own role, where set so."""

from __future__ import annotations

import json
import shlex
import threading

from hcloud.core.errors import ConfigError, ProviderUnavailable
from providers.cloud_init import read_credential
from providers.ec2.clients import Clients
from providers.ec2.errors import Call, translating_errors
from providers.ec2.settings import Ec2Settings

# Runs with the worker's own Python (extra "aws"); the role's keys come from the metadata service and last some hours.
_FETCH = (
    "import boto3,sys;"
    "print(boto3.client('ssm',region_name=sys.argv[1])"
    ".get_parameter(Name=sys.argv[2],WithDecryption=True)['Parameter']['Value'])"
)
FILE_ON_MACHINE = "/etc/hcloud/credential.json"


class WorkerCredential:
    """Puts the key where machines fetch it, once per process and content."""

    def __init__(self, clients: Clients, settings: Ec2Settings, provider: str) -> None:
        self._clients, self._settings, self._provider = clients, settings, provider
        self._lock = threading.Lock()
        self._put: dict[str, str] = {}

    def parameter_name(self, owner: str) -> str:
        """Return the name of a deployment's parameter."""
        return f"{self._settings.parameter_path}/{owner}/worker"

    def command(self, owner: str) -> str:
        """Return the shell command by which a machine prints the files as JSON ("": the image has them)."""
        match self._settings.credential:
            case "image":
                return ""
            case "user_data":
                return f"cat {FILE_ON_MACHINE}"
            case "ssm":
                words = ("/opt/hcloud/bin/python", "-c", _FETCH, self._settings.region, self.parameter_name(owner))
                return shlex.join(words)

    def in_user_data(self, tls_dir: str) -> dict[str, str]:
        """Return the files that stand in the user data, where set so. Raises ProviderUnavailable: no such files."""
        return self._files(tls_dir) if self._settings.credential == "user_data" else {}

    def publish(self, owner: str, tls_dir: str) -> None:
        """See to it that the parameter holds the present files.

        Raises ProviderUnavailable (also: no such files), Throttled: certainly nothing was launched.
        """
        if self._settings.credential != "ssm":
            return
        name, text = self.parameter_name(owner), json.dumps(self._files(tls_dir), sort_keys=True)
        with self._lock:
            if self._put.get(name) == text:
                return
            with translating_errors(Call.READ, f"{self._provider}: writing {name}"):  # overwriting it again is harmless
                self._clients.reading("ssm").put_parameter(Name=name, Value=text, Type="SecureString", Overwrite=True)
            self._put[name] = text

    def _files(self, tls_dir: str) -> dict[str, str]:
        try:
            return read_credential(tls_dir)
        except ConfigError as error:  # it can be mended while the daemon runs, so the launch waits
            raise ProviderUnavailable(f"{self._provider}: no key for workers: {error}") from error
