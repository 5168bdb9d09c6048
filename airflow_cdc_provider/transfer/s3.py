"""A prefix of an S3 bucket, or of any S3-compatible store. It can neither rename nor append.

The store verifies the SHA-256 of each object before the object becomes visible.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.transfer.stores import PIECE_BYTES, Item, is_name

_MISSING: Final = ("NoSuchKey", "404")
_REFUSALS: Final = (
    "AccessDenied",
    "AllAccessDisabled",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidBucketName",
    "NoSuchBucket",
    "PermanentRedirect",
    "SignatureDoesNotMatch",
)


def split_s3_url(url: str) -> tuple[str, str]:
    """Return bucket and prefix of ``s3://bucket/prefix``.

    Raises:
        ConfigurationError: The URL has another form.
    """
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    if not url.startswith("s3://") or not bucket:
        raise ConfigurationError("invalid bucket URL", expected="s3://bucket/prefix", found=url)
    return bucket, prefix.strip("/")


class S3Store:
    """Objects below a prefix.

    Args:
        client: boto3's client, ``boto3.client("s3")``; threads may share it.
        bucket: The bucket.
        prefix: Prefix of the keys, without the slash.
    """

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        self.client = client
        self.bucket = bucket
        self.prefix = f"{prefix}/" if prefix else ""

    def exclusive(self) -> AbstractContextManager[None]:
        """Do nothing: there is one shipper per node."""
        return nullcontext()

    def items(self) -> list[Item]:
        """List objects."""
        pages = self.client.get_paginator("list_objects_v2")
        with self._errors():
            return [
                Item(name, entry["Size"], entry["LastModified"].timestamp())
                for page in pages.paginate(Bucket=self.bucket, Prefix=self.prefix, Delimiter="/")
                for entry in page.get("Contents", ())
                if is_name(name := entry["Key"].removeprefix(self.prefix))
            ]

    def read(self, name: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield an object's bytes."""
        if end is not None and end <= begin:
            return
        byte_range = {} if begin == 0 and end is None else {"Range": _range(begin, end)}
        with self._errors():
            answer = self.client.get_object(Bucket=self.bucket, Key=self.prefix + name, **byte_range)
            yield from answer["Body"].iter_chunks(PIECE_BYTES)

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write an object in one atomic request."""
        data = b"".join(pieces)
        checksum = base64.b64encode(hashlib.sha256(data).digest()).decode()
        with self._errors():
            self.client.put_object(
                Bucket=self.bucket, Key=self.prefix + name, Body=data, ChecksumSHA256=checksum
            )

    def remove(self, name: str) -> None:
        """Remove an object."""
        with self._errors():
            self.client.delete_object(Bucket=self.bucket, Key=self.prefix + name)

    def sweep(self) -> None:
        """Do nothing: incomplete objects of killed writers aren't visible."""

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

        url = f"s3://{self.bucket}/{self.prefix}"
        try:
            yield
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code == "InvalidRange":  # the object ends before
                return
            if code in _MISSING:
                raise FileNotFoundError(url) from None
            if code in _REFUSALS:
                raise ConfigurationError(
                    f"access to {url} is denied",
                    found=code,
                    remedy="correct the bucket, its policy or the keys",
                ) from None
            raise TransientError(f"{url} failed", found=code) from None
        except NoCredentialsError:
            raise ConfigurationError(
                f"there are no credentials for {url}",
                remedy="set them in the Airflow connection, or where boto3 looks for them",
            ) from None
        except BotoCoreError as error:
            raise TransientError(f"{url} can't be reached", found=type(error).__name__) from None


def _range(begin: int, end: int | None) -> str:
    return f"bytes={begin}-{'' if end is None else end - 1}"
