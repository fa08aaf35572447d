"""How an instance gets the worker's TLS key: from an encrypted SSM parameter, from user data, or from its image."""

from __future__ import annotations

import json
import shlex
import threading

from hcloud.core.errors import ConfigError, ProviderUnavailable
from providers.cloud_init import read_credential
from providers.ec2.clients import Clients
from providers.ec2.errors import Call, translating_errors
from providers.ec2.settings import Ec2Settings

# Runs with the worker's own Python (extra "aws"). The role's temporary keys come from the metadata service.
_FETCH = (
    "import boto3,sys;"
    "print(boto3.client('ssm',region_name=sys.argv[1])"
    ".get_parameter(Name=sys.argv[2],WithDecryption=True)['Parameter']['Value'])"
)
FILE_ON_MACHINE = "/etc/hcloud/credential.json"


class WorkerCredential:
    """Publishes the worker's TLS files as an encrypted parameter, once per process and content."""

    def __init__(self, clients: Clients, settings: Ec2Settings, provider: str) -> None:
        self._clients, self._settings, self._provider = clients, settings, provider
        self._lock = threading.Lock()
        self._put: dict[str, str] = {}

    def parameter_name(self, owner: str) -> str:
        """Return the name of a deployment's parameter: ``PATH/OWNER/worker``."""
        return f"{self._settings.parameter_path}/{owner}/worker"

    def command(self, owner: str) -> str:
        """Return the shell command that prints the TLS files as JSON on an instance; "" if the image contains them."""
        match self._settings.credential:
            case "image":
                return ""
            case "user_data":
                return f"cat {FILE_ON_MACHINE}"
            case "ssm":
                words = ("/opt/hcloud/bin/python", "-c", _FETCH, self._settings.region, self.parameter_name(owner))
                return shlex.join(words)

    def in_user_data(self, tls_dir: str) -> dict[str, str]:
        """Return the TLS files to put into user data; empty unless so configured.

        Raises ProviderUnavailable: files missing.
        """
        return self._files(tls_dir) if self._settings.credential == "user_data" else {}

    def publish(self, owner: str, tls_dir: str) -> None:
        """Make sure that the parameter holds the current TLS files.

        Raises ProviderUnavailable (also when files are missing) and Throttled. In both cases nothing was
        launched.
        """
        if self._settings.credential != "ssm":
            return
        name, text = self.parameter_name(owner), json.dumps(self._files(tls_dir), sort_keys=True)
        with self._lock:
            if self._put.get(name) == text:
                return
            with translating_errors(Call.READ, f"{self._provider}: writing {name}"):  # overwriting is idempotent
                self._clients.reading("ssm").put_parameter(Name=name, Value=text, Type="SecureString", Overwrite=True)
            self._put[name] = text

    def _files(self, tls_dir: str) -> dict[str, str]:
        try:
            return read_credential(tls_dir)
        except ConfigError as error:  # fixable while the daemon runs, so the launch is retried
            raise ProviderUnavailable(f"{self._provider}: cannot read the workers' TLS key: {error}") from error
