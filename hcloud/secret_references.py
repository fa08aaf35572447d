"""Secrets of jobs that AWS Secrets Manager or GCP Secret Manager keeps: read when a unit starts, and stored nowhere.

The database has the reference only (``REFERENCE_MARK`` before it, encrypted like a value). A value is in the memory of
the daemon for ``KEPT_S`` at most. No message ever quotes one.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from hcloud.core.errors import BadInput, SecretUnreadable, missing_library
from hcloud.spec.job_variables import ARGUMENT_BYTES_MAX, REFERENCE_MARK

KEPT_S = 30.0
"""For so long a value that was read may be used: all units of a job that start together cost one call."""
GIVE_UP_S = 60.0
"""After so long without an answer of the manager, a unit is not started."""
RETRY_S = 2.0
CONNECT_S, READ_S, TRIES = 3.0, 5.0, 2
AT_ONCE = 4
CHECKED_MOST = 20
"""References of one request at most: each costs a call."""
_AWS_REGION = re.compile(r"arn:[a-z-]+:secretsmanager:([a-z0-9-]+):")


class SecretAbsent(Exception):
    """There is no such secret, or the daemon may not read it; the message says which, and quotes no value."""


class ManagerAway(Exception):
    """The manager gives no answer now; the message is a code or the kind of an error."""


class SecretManager(Protocol):
    """One cloud's store of secrets."""

    def read(self, name: str) -> str:
        """Return a secret's text. Raises SecretAbsent; ManagerAway or OSError, which may pass by itself."""
        ...


@dataclass(frozen=True, slots=True)
class SecretReference:
    """Where a secret is kept: ``aws:prod/db#password``, ``gcp:projects/p/secrets/s/versions/latest``."""

    cloud: str
    name: str
    key: str
    """Of the JSON object that the secret is; empty: the secret is the text itself."""

    @classmethod
    def parsed(cls, text: str) -> SecretReference:
        """Return the reference; ``text`` has the form that job files are checked for."""
        cloud, _, rest = text.partition(":")
        name, _, key = rest.partition("#")
        return cls(cloud, name, key)

    def value_in(self, text: str) -> str:
        """Return what of a secret's text is meant. Raises SecretAbsent."""
        value: object = text
        if self.key:
            try:
                found = json.loads(text)
            except ValueError:
                found = None
            if not isinstance(found, dict):
                raise SecretAbsent(f"is no JSON object, so it has no {self.key!r}")
            value = found.get(self.key)
            if value is None:
                raise SecretAbsent(f"has no key {self.key!r}")
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise SecretAbsent(f"has no text or number as {self.key!r}")
        plain = str(value)
        if "\0" in plain or len(plain.encode()) > ARGUMENT_BYTES_MAX:
            raise SecretAbsent(f"cannot be a variable: it holds a NUL, or more than {ARGUMENT_BYTES_MAX} bytes")
        return plain


@dataclass(slots=True)
class AwsSecretManager:
    """AWS Secrets Manager, with credentials of boto3's own chain."""

    region: str | None = None
    endpoint: str | None = None
    _clients: dict[str, Any] = field(default_factory=dict)

    def read(self, name: str) -> str:
        """Return the current version's text."""
        try:
            from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError
        except ImportError as error:
            raise SecretAbsent(missing_library("boto3", "aws")) from error
        try:
            answer = self._client(name).get_secret_value(SecretId=name)
        except NoCredentialsError as error:
            raise SecretAbsent("cannot be read: the daemon has no AWS credentials") from error
        except NoRegionError as error:
            raise SecretAbsent("cannot be read: no region; set secrets.aws_region") from error
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", "unknown"))
            if code in _AWS_WORDS:
                raise SecretAbsent(_AWS_WORDS[code]) from error
            raise ManagerAway(code) from error
        except BotoCoreError as error:
            raise ManagerAway(type(error).__name__) from error
        if "SecretString" not in answer:
            raise SecretAbsent("is binary; only text can be a variable")
        return str(answer["SecretString"])

    def _client(self, name: str) -> Any:
        import boto3
        from botocore.config import Config

        found = _AWS_REGION.match(name)
        region = found[1] if found is not None else self.region
        if (client := self._clients.get(region or "")) is None:
            config = Config(connect_timeout=CONNECT_S, read_timeout=READ_S, retries={"total_max_attempts": TRIES})
            session = boto3.session.Session(region_name=region)
            client = session.client("secretsmanager", endpoint_url=self.endpoint, config=config)
            self._clients[region or ""] = client
        return client


_AWS_WORDS: Mapping[str, str] = {
    "ResourceNotFoundException": "does not exist in AWS Secrets Manager, or has no value",
    "InvalidRequestException": "is marked for deletion in AWS Secrets Manager",
    "InvalidParameterException": "is no name that AWS Secrets Manager accepts",
    "AccessDeniedException": "cannot be read: AWS denies the daemon access (secretsmanager:GetSecretValue)",
    "DecryptionFailure": "cannot be decrypted: AWS denies the daemon the secret's key (kms:Decrypt)",
    "UnrecognizedClientException": "cannot be read: AWS does not know the daemon's credentials",
    "InvalidSignatureException": "cannot be read: the daemon's AWS credentials are wrong",
    "ExpiredTokenException": "cannot be read: the daemon's AWS credentials have expired",
}
GCP_ENDPOINT = "https://secretmanager.googleapis.com"
_GCP_WORDS: Mapping[int, str] = {
    400: "is no name that GCP Secret Manager accepts, or a version that is disabled or destroyed",
    401: "cannot be read: GCP does not accept the daemon's credentials",
    403: "cannot be read: GCP denies the daemon access (secretmanager.versions.access), or there is no such secret",
    404: "does not exist in GCP Secret Manager",
}


def _google_session() -> Any:
    """Return a session with the application's default credentials. Raises SecretAbsent."""
    try:
        import google.auth
        from google.auth.transport.requests import AuthorizedSession
    except ImportError as error:
        raise SecretAbsent(missing_library("google-auth", "gcp")) from error
    try:
        credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    except google.auth.exceptions.DefaultCredentialsError as error:
        raise SecretAbsent("cannot be read: the daemon has no GCP credentials") from error
    opened: Any = AuthorizedSession  # untyped
    return opened(credentials)


@dataclass(slots=True)
class GcpSecretManager:
    """GCP Secret Manager over its REST API."""

    endpoint: str = GCP_ENDPOINT
    session: Callable[[], Any] = _google_session
    """Makes what sends requests."""
    _opened: Any = None

    def read(self, name: str) -> str:
        """Return a version's text; without ``/versions/...`` that of the latest."""
        version = name if "/versions/" in name else f"{name}/versions/latest"
        self._opened = self._opened or self.session()
        from google.auth.exceptions import GoogleAuthError

        try:
            answer = self._opened.get(f"{self.endpoint}/v1/{version}:access", timeout=(CONNECT_S, READ_S))
        except GoogleAuthError as error:
            raise ManagerAway(type(error).__name__) from error
        if answer.status_code in _GCP_WORDS:
            raise SecretAbsent(_GCP_WORDS[answer.status_code])
        if answer.status_code != 200:
            raise ManagerAway(f"status {answer.status_code}")
        try:
            return base64.b64decode(answer.json()["payload"]["data"], validate=True).decode()
        except (ValueError, KeyError, TypeError):
            raise SecretAbsent("is binary; only text can be a variable") from None


@dataclass(slots=True)
class _Reading:
    """A value that is being read, or was."""

    began_at: float
    future: Future[str]
    tried_at: float

    def is_old(self, now: float) -> bool:
        """Return whether it must not be used any more, or no job asks for it."""
        if not self.future.done():
            return False
        return now - self.tried_at > (KEPT_S if self.future.exception() is None else 2 * GIVE_UP_S)


@dataclass(slots=True)
class SecretReferences:
    """Reads secrets by reference. Safe in several threads; ``resolved`` never waits.

    ``allowed``: prefixes of references that jobs may name; ``{user}`` in one stands for the job's owner.
    """

    allowed: Sequence[str] = ()
    managers: Mapping[str, SecretManager] = field(default_factory=dict)
    now: Callable[[], float] = time.monotonic
    _pool: ThreadPoolExecutor | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _readings: dict[str, _Reading] = field(default_factory=dict)
    _checked: dict[str, float] = field(default_factory=dict)
    """When references were found readable at a submission."""

    def check(self, user: str, references: Mapping[str, str]) -> None:
        """Read references by name of the variable, and forget what they are.

        Raises BadInput: one is not allowed, not there or cannot be read.
        """
        if len(set(references.values())) > CHECKED_MOST:
            raise BadInput(f"at most {CHECKED_MOST} different references to secrets are possible in one job")
        found = dict[str, str]()
        for name, text in references.items():
            if text not in found:
                found[text] = self._problem(user, text)
            if found[text]:
                raise BadInput(f"env.{name}.secret_from: {found[text]}")

    def _problem(self, user: str, text: str) -> str:
        """Return why a reference cannot be read now; empty: it can."""
        if (refusal := self._refusal(user, text)) is not None:
            return refusal
        now = self.now()
        with self._lock:
            self._checked = {each: at for each, at in self._checked.items() if now - at < KEPT_S}
            if text in self._checked:  # the same one of the job before in a request
                return ""
        try:
            self._read(text)
        except SecretAbsent as absent:
            return f"{text} {absent}"
        except (ManagerAway, OSError) as error:
            return f"{text} cannot be read now ({_kind(error)}); try again"
        with self._lock:
            self._checked[text] = now
        return ""

    def _refusal(self, user: str, text: str) -> str | None:
        prefixes = [each.replace("{user}", user) for each in self.allowed]
        if not any(text.startswith(each) for each in prefixes):
            return f"{text} is not among the secrets that jobs may name here (secrets.references)"
        if text.partition(":")[0] not in self.managers:
            return f"{text}: there is no such store of secrets"
        return None

    def _read(self, text: str) -> str:
        reference = SecretReference.parsed(text)
        return reference.value_in(self.managers[reference.cloud].read(reference.name))

    def resolved(self, user: str, values: Mapping[str, str]) -> Mapping[str, str] | None:
        """Return a job's secrets with the values of its references; None: these are still being read.

        Raises SecretUnreadable: one is not allowed any more, gone, or has not been readable for ``GIVE_UP_S``.
        """
        found = dict[str, str]()
        pending = False
        for name, value in values.items():
            if not value.startswith(REFERENCE_MARK):
                found[name] = value
                continue
            known = self._known(user, value.removeprefix(REFERENCE_MARK))
            pending = pending or known is None
            found[name] = known or ""
        return None if pending else found

    def _known(self, user: str, text: str) -> str | None:
        if (refusal := self._refusal(user, text)) is not None:
            raise SecretUnreadable(refusal)
        with self._lock:
            now = self.now()
            old = [each for each, reading in self._readings.items() if reading.is_old(now)]
            for each in old:
                del self._readings[each]
            reading = self._readings.get(text)
            if reading is None:
                reading = self._readings[text] = _Reading(now, self._begin(text), now)
            if not reading.future.done():
                return None
            try:
                return reading.future.result()
            except SecretAbsent as absent:
                del self._readings[text]
                raise SecretUnreadable(f"{text} {absent}") from absent
            except (ManagerAway, OSError) as error:
                self._again(text, reading, error)
                return None

    def _again(self, text: str, reading: _Reading, error: Exception) -> None:
        now = self.now()
        if now - reading.began_at > GIVE_UP_S:
            del self._readings[text]
            raise SecretUnreadable(f"{text} could not be read for {GIVE_UP_S:g} s ({_kind(error)})") from error
        if now - reading.tried_at > RETRY_S:
            reading.future, reading.tried_at = self._begin(text), now

    def _begin(self, text: str) -> Future[str]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="secret")
        return self._pool.submit(self._read, text)


def _kind(error: Exception) -> str:
    """Return a few words that quote nothing that was sent."""
    return str(error) if isinstance(error, ManagerAway) else type(error).__name__
