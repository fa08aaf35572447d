"""What is asked of S3 and GCS: a list of objects, and URLs signed for one object each."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from hcloud.core.errors import HCloudError, missing_library

if TYPE_CHECKING:
    from google.cloud.storage import Client as GcsClient

CONNECT_S: Final = 5.0
READ_S: Final = 15.0
TRIES: Final = 3
PAGE: Final = 1000
WORDS_MOST: Final = 300


class BucketProblem(HCloudError):
    """A bucket or object cannot be used. The message is one sentence that says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """One object."""

    key: str
    size_bytes: int
    etag: str = ""
    """What the store calls this content of it, as it stands in its answers."""
    generation: str = ""
    """Number of this content in GCS."""
    md5: str = ""
    """In hexadecimal; empty where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedUrl:
    """A URL with which anybody may do one thing with one object for a while."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Must be sent along."""
    answers: Mapping[str, str] = field(default_factory=dict)
    """Headers of the answer that show that it is this very content."""


class BucketClient(Protocol):
    """One kind of store, with one account. Safe in several threads."""

    def list(self, bucket: str, prefix: str, limit: int) -> list[StoredObject]:
        """Return at most ``limit`` objects whose names begin so, in order. Raises BucketProblem."""
        ...

    def sign_get(self, bucket: str, stored: StoredObject, valid_s: float) -> SignedUrl:
        """Return a URL that reads this very content. Raises BucketProblem."""
        ...

    def sign_put(self, bucket: str, key: str, size_bytes: int, md5: str, valid_s: float) -> SignedUrl:
        """Return a URL that writes this very content, by its size and MD5 (hexadecimal). Raises BucketProblem."""
        ...

    def check_write(self, bucket: str, key: str) -> None:
        """Check that an object of this name could be written, without making one. Raises BucketProblem."""
        ...


@dataclass(slots=True)
class S3Client:
    """S3, or what speaks its protocol, by botocore's usual credentials."""

    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    _client: Any = None

    def list(self, bucket: str, prefix: str, limit: int) -> list[StoredObject]:
        """Return at most ``limit`` objects whose names begin so. Raises BucketProblem."""
        found, more = list[StoredObject](), dict[str, str]()
        with _s3_problems(f"s3://{bucket}/{prefix}"):
            while len(found) < limit:
                page = self._connected().list_objects_v2(
                    Bucket=bucket, Prefix=prefix, MaxKeys=min(PAGE, limit - len(found)), **more
                )
                found += [_s3_object(each) for each in page.get("Contents", ())]
                if not page.get("IsTruncated"):
                    break
                more = {"ContinuationToken": page["NextContinuationToken"]}
        return found

    def sign_get(self, bucket: str, stored: StoredObject, valid_s: float) -> SignedUrl:
        """Return a URL that reads this very content. Raises BucketProblem."""
        etag = {"IfMatch": stored.etag} if stored.etag else {}
        with _s3_problems(f"s3://{bucket}/{stored.key}"):
            url = self._connected().generate_presigned_url(
                "get_object", Params={"Bucket": bucket, "Key": stored.key, **etag}, ExpiresIn=int(valid_s)
            )
        headers = {"If-Match": stored.etag} if stored.etag else {}
        return SignedUrl(url=url, headers=headers, answers={"ETag": stored.etag} if stored.etag else {})

    def sign_put(self, bucket: str, key: str, size_bytes: int, md5: str, valid_s: float) -> SignedUrl:
        """Return a URL that writes this very content. Raises BucketProblem."""
        content_md5 = base64.b64encode(bytes.fromhex(md5)).decode()
        with _s3_problems(f"s3://{bucket}/{key}"):
            url = self._connected().generate_presigned_url(
                "put_object",
                Params={"Bucket": bucket, "Key": key, "ContentMD5": content_md5, "ContentLength": size_bytes},
                ExpiresIn=int(valid_s),
            )
        return SignedUrl(url=url, headers={"Content-MD5": content_md5})

    def check_write(self, bucket: str, key: str) -> None:
        """Begin an upload in parts, which asks for the permission to write, and abort it. Raises BucketProblem."""
        what = f"s3://{bucket}/{key}"
        with _s3_problems(what, "to write there"):
            begun = self._connected().create_multipart_upload(Bucket=bucket, Key=key)
        with suppress(BucketProblem), _s3_problems(what):  # without parts it costs nothing, and is no object
            self._connected().abort_multipart_upload(Bucket=bucket, Key=key, UploadId=begun["UploadId"])

    def _connected(self) -> Any:
        if self._client is None:
            import boto3
            from botocore.config import Config

            config = Config(
                signature_version="s3v4",
                connect_timeout=CONNECT_S,
                read_timeout=READ_S,
                retries={"total_max_attempts": TRIES, "mode": "standard"},
                s3={"addressing_style": "path"} if self.endpoint else None,
            )
            session = boto3.Session(profile_name=self.profile, region_name=self.region)
            self._client = session.client("s3", endpoint_url=self.endpoint, config=config)
        return self._client


def _s3_object(each: Mapping[str, Any]) -> StoredObject:
    plain = str(each["ETag"]).strip('"')
    # Of an object that came in one part it is the content's MD5, unless KMS encrypts it, which its answer will say.
    md5 = plain if len(plain) == 32 and all(letter in "0123456789abcdef" for letter in plain) else ""
    return StoredObject(key=each["Key"], size_bytes=int(each["Size"]), etag=each["ETag"], md5=md5)


def _no_permission(to_do: str) -> str:
    return f"the daemon has no permission{f' {to_do}' if to_do else ''}"


_S3_WORDS: Final = {
    "NoSuchBucket": "there is no such bucket",
    "InvalidAccessKeyId": "the daemon's credentials are not known there (InvalidAccessKeyId)",
    "SignatureDoesNotMatch": "the daemon's credentials are wrong (SignatureDoesNotMatch)",
    "ExpiredToken": "the daemon's credentials have expired (ExpiredToken)",
}


@contextmanager
def _s3_problems(what: str, to_do: str = "") -> Iterator[None]:
    """Turn errors of botocore into one sentence; ``to_do``: what a permission is for."""
    try:
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise BucketProblem(f"{what}: {missing_library('boto3', 's3')}") from error
    try:
        yield
    except ImportError as error:
        raise BucketProblem(f"{what}: {missing_library('boto3', 's3')}") from error
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", "unknown"))
        if code in ("AccessDenied", "403"):
            raise BucketProblem(f"{what}: {_no_permission(to_do)} (AccessDenied)") from error
        raise BucketProblem(f"{what}: {_S3_WORDS.get(code, f'S3 answers {code}')}") from error
    except BotoCoreError as error:
        raise BucketProblem(f"{what}: {str(error)[:WORDS_MOST]}") from error


@dataclass(slots=True)
class GcsStore:
    """GCS by Google's usual credentials; URLs are signed with the key of a service account, or by its IAM."""

    endpoint: str | None = None
    make: Callable[[], GcsClient] | None = None
    """Makes the library's client; None: by the default credentials."""
    _client: Any = None

    def list(self, bucket: str, prefix: str, limit: int) -> list[StoredObject]:
        """Return at most ``limit`` objects whose names begin so. Raises BucketProblem."""
        with _gcs_problems(f"gs://{bucket}/{prefix}"):
            pages = self._connected().list_blobs(
                bucket, prefix=prefix, max_results=limit, timeout=(CONNECT_S, READ_S), retry=None
            )
            return [
                StoredObject(
                    key=each.name, size_bytes=int(each.size), generation=str(each.generation), md5=_hex(each.md5_hash)
                )
                for each in pages
            ]

    def sign_get(self, bucket: str, stored: StoredObject, valid_s: float) -> SignedUrl:
        """Return a URL that reads this very content. Raises BucketProblem."""
        with _gcs_problems(f"gs://{bucket}/{stored.key}"):
            blob = self._connected().bucket(bucket).blob(stored.key)
            url = blob.generate_signed_url(
                version="v4",
                expiration=int(valid_s),
                method="GET",
                generation=stored.generation,
                **self._signer(),
            )
        return SignedUrl(url=url, answers={"x-goog-generation": stored.generation})

    def sign_put(self, bucket: str, key: str, size_bytes: int, md5: str, valid_s: float) -> SignedUrl:
        """Return a URL that writes this very content. Raises BucketProblem."""
        content_md5 = base64.b64encode(bytes.fromhex(md5)).decode()
        # GCS refuses what is longer or shorter.
        headers = {"x-goog-content-length-range": f"{size_bytes},{size_bytes}"}
        with _gcs_problems(f"gs://{bucket}/{key}"):
            blob = self._connected().bucket(bucket).blob(key)
            url = blob.generate_signed_url(
                version="v4",
                expiration=int(valid_s),
                method="PUT",
                content_md5=content_md5,
                headers=headers,
                **self._signer(),
            )
        return SignedUrl(url=url, headers={"Content-MD5": content_md5, **headers})

    def check_write(self, bucket: str, key: str) -> None:
        """Begin a resumable upload, which asks for the permission to write, and cancel it. Raises BucketProblem."""
        what = f"gs://{bucket}/{key}"
        with _gcs_problems(what, "to write there"):
            blob = self._connected().bucket(bucket).blob(key)
            begun = blob.create_resumable_upload_session(timeout=(CONNECT_S, READ_S), retry=None)
        with suppress(BucketProblem), _gcs_problems(what):  # else it ends by itself after a week
            self._connected()._http.delete(begun, timeout=(CONNECT_S, READ_S))

    def _signer(self) -> dict[str, Any]:
        """Return what signs: the credentials' own key, or IAM for those of a machine."""
        credentials, more = self._connected()._credentials, dict[str, Any]()
        if self.endpoint is not None:
            more["api_access_endpoint"] = self.endpoint
        if hasattr(credentials, "sign_bytes") and getattr(credentials, "signer", None) is not None:
            return more
        import google.auth.transport.requests

        credentials.refresh(google.auth.transport.requests.Request())
        return {
            **more,
            "service_account_email": credentials.service_account_email,
            "access_token": credentials.token,
        }

    def _connected(self) -> Any:
        if self._client is None:
            from google.cloud import storage

            options = {"api_endpoint": self.endpoint} if self.endpoint else None
            self._client = self.make() if self.make is not None else storage.Client(client_options=options)
        return self._client


def _hex(md5_base64: str | None) -> str:
    try:
        return base64.b64decode(md5_base64 or "", validate=True).hex()
    except binascii.Error:
        return ""


@contextmanager
def _gcs_problems(what: str, to_do: str = "") -> Iterator[None]:
    """Turn errors of Google's libraries into one sentence; ``to_do``: what a permission is for."""
    try:
        from google.api_core.exceptions import Forbidden, GoogleAPICallError, NotFound, Unauthorized
        from google.auth.exceptions import GoogleAuthError
        from google.cloud import storage  # noqa: F401 whether it is there
        from requests import RequestException
    except ImportError as error:
        raise BucketProblem(f"{what}: {missing_library('google-cloud-storage', 'gcs')}") from error
    try:
        yield
    except NotFound as error:
        raise BucketProblem(f"{what}: there is no such bucket") from error
    except (Forbidden, Unauthorized) as error:
        raise BucketProblem(f"{what}: {_no_permission(to_do)} (HTTP {error.code})") from error
    except GoogleAPICallError as error:
        raise BucketProblem(f"{what}: GCS answers HTTP {error.code}") from error
    except (GoogleAuthError, RequestException, AttributeError) as error:
        text = str(error).splitlines() or [type(error).__name__]
        raise BucketProblem(f"{what}: {text[0][:WORDS_MOST]}") from error
