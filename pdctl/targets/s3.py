"""A model's files in S3, as URLs that need no credentials. Reads only."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pdctl.base.errors import NotFoundError, PdctlError, PermissionDeniedError, UnreachableError

if TYPE_CHECKING:
    from botocore.client import BaseClient

_GOOD_FOR_S = 24 * 3600
_LIMIT_S = 30


@dataclass(frozen=True)
class S3File:
    """One object: its name below the prefix, and what S3 says of its content."""

    path: str
    url: str
    size: int
    sha256: str | None
    md5: str | None


def list_model(source: str) -> list[S3File]:
    """All objects under `s3://BUCKET/PREFIX`.

    Raises:
        NotFoundError: there are none.
        PermissionDeniedError, UnreachableError: S3 refuses, or does not answer.
    """
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    bucket, _, prefix = source.removeprefix("s3://").partition("/")
    prefix = prefix.rstrip("/") + "/" if prefix.strip("/") else ""
    try:
        client = boto3.client(
            "s3",
            config=Config(
                signature_version="s3v4", connect_timeout=_LIMIT_S, read_timeout=_LIMIT_S
            ),
        )
        found = list(_objects(client, bucket, prefix))
    except NoCredentialsError as error:
        raise PermissionDeniedError("there are no AWS credentials", where=source) from error
    except ClientError as error:
        raise _refused(source, error.response.get("Error") or {}) from error
    except BotoCoreError as error:
        raise UnreachableError(f"S3 cannot be asked: {error}", where=source) from error
    if not found:
        raise NotFoundError(
            "there are no objects", where=source, expected="config.json and weights below it"
        )
    return found


def _objects(client: "BaseClient", bucket: str, prefix: str) -> Iterator[S3File]:
    pages: Any = client.get_paginator("list_objects_v2")
    for page in pages.paginate(Bucket=bucket, Prefix=prefix):
        for each in page.get("Contents", ()):
            key = each["Key"]
            if not key.endswith("/"):
                yield _file(client, bucket, key, key.removeprefix(prefix), int(each["Size"]))


def _file(client: Any, bucket: str, key: str, path: str, size: int) -> S3File:
    about = client.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
    # Of an object that came in parts, both are digests of digests.
    whole = about.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT"
    sha256 = about.get("ChecksumSHA256") if whole else None
    etag = str(about.get("ETag", "")).strip('"')
    is_md5 = len(etag) == 32 and about.get("ServerSideEncryption", "AES256") == "AES256"
    url = client.generate_presigned_url(
        "get_object", Params={"Bucket": bucket, "Key": key}, ExpiresIn=_GOOD_FOR_S
    )
    return S3File(
        path=path,
        url=url,
        size=size,
        sha256=base64.b64decode(sha256).hex() if sha256 and "-" not in sha256 else None,
        md5=etag if is_md5 else None,
    )


def _refused(source: str, error: Any) -> PdctlError:
    code = str(error.get("Code"))
    if code in ("NoSuchBucket", "404", "NotFound"):
        return NotFoundError(f"there is no such bucket: {code}", where=source)
    return PermissionDeniedError(
        f"S3 does not show us the model: {code}: {error.get('Message')}",
        where=source,
        hints=["these are needed: s3:ListBucket on the bucket, s3:GetObject below the prefix"],
    )
