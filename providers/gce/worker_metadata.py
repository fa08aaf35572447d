"""Metadata that makes an instance a worker: user data for cloud-init, and a start script for images without it."""

from __future__ import annotations

from hcloud.core.errors import ConfigError, LaunchRejected
from hcloud.provider import LaunchRequest
from providers.cloud_init import WorkerSetup, read_credential, render_user_data
from providers.gce.settings import GceSettings

WITHOUT_CLOUD_INIT = """#!/bin/sh
# cloud-init makes this instance an HCloud worker. Without cloud-init in the image, switch off.
command -v cloud-init >/dev/null && exit 0
echo "hcloud: this image has no cloud-init, so it cannot become a worker; switching off"
systemctl poweroff || poweroff -f
"""

# The instance authenticates as its service account; only the instance itself can get that token.
FETCH_SECRET = """set -euo pipefail
token=$(curl -sf -m 10 -H 'Metadata-Flavor: Google' \
"${{METADATA_URL:-http://169.254.169.254}}/computeMetadata/v1/instance/service-accounts/default/token" |
python3 -c 'import json, sys; print(json.load(sys.stdin)["access_token"])')
curl -sf -m 30 -H "Authorization: Bearer $token" \
"${{SECRETS_URL:-https://secretmanager.googleapis.com}}/v1/{secret}:access" |
python3 -c 'import base64, json, sys; print(base64.b64decode(json.load(sys.stdin)["payload"]["data"]).decode())'
"""


def worker_metadata(request: LaunchRequest, settings: GceSettings) -> dict[str, str]:
    """Return the metadata items of a worker; empty if the request has no bootstrap.

    Raises LaunchRejected: the engine cannot be reached from the instance, or the TLS files are missing here.
    """
    if request.bootstrap is None:
        return {}
    worker = settings.worker
    try:
        credential = read_credential(request.bootstrap.tls_dir) if worker.tls_in_metadata else {}
    except ConfigError as error:
        raise LaunchRejected(str(error)) from error
    setup = WorkerSetup(
        request=request,
        capacity=request.offer.instance_type.capacity,
        scheduler_address=worker.scheduler_address,
        system_packages=worker.system_packages,
        credential_command=FETCH_SECRET.format(secret=worker.tls_secret) if worker.tls_secret else "",
        credential=credential,
        notice="gce",
        boot_timeout_s=worker.boot_timeout_s,
    )
    return {"user-data": render_user_data(setup), "startup-script": WITHOUT_CLOUD_INIT}
