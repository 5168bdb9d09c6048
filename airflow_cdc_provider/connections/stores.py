"""Segment stores behind Airflow connections: ``ssh`` or ``sftp``, and ``aws``.

The connections have Airflow's stock types. SSH uses Airflow's own ``SSHHook`` (extra ``sftp`` of this
package), with the keys, passwords, host keys and proxies of its form. S3 uses boto3 (extra ``s3``): Amazon's
provider would add fifty packages for the same client.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

from airflow_cdc_provider.connection_settings import check_files
from airflow_cdc_provider.connections.secrets_masker import keep_secret
from airflow_cdc_provider.exceptions import ConfigurationError, TransientError, from_extra
from airflow_cdc_provider.transfer.s3 import S3Store, split_s3_url
from airflow_cdc_provider.transfer.stores import (
    PIECE_BYTES,
    Item,
    is_name,
    is_partial,
    partial_name,
    require_equal,
)

if TYPE_CHECKING:
    from paramiko import SFTPClient, SSHClient

_HOST: Final = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_.:%-]*")
_AWS_EXTRA: Final = ("region_name", "endpoint_url", "aws_session_token", "profile_name")


class SftpStore:
    """A folder on another machine. Each thread has its own connection.

    Args:
        ssh_conn_id: An Airflow connection of type ``ssh`` or ``sftp``.
        folder: The folder there.
    """

    def __init__(self, ssh_conn_id: str, folder: str) -> None:
        self.ssh_conn_id = ssh_conn_id
        self.folder = folder.rstrip("/")
        self._own = threading.local()
        self._opened: list[SSHClient] = []

    def exclusive(self) -> AbstractContextManager[None]:
        """Do nothing: there is no lock."""
        return nullcontext()

    def items(self) -> list[Item]:
        """List complete files."""
        return [item for item in self._all() if not item.name.startswith(".")]

    def read(self, name: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield a file's bytes."""
        with self._errors(), self._sftp.open(f"{self.folder}/{name}", "rb") as file:
            size = file.stat().st_size or 0
            at, end = begin, size if end is None else min(end, size)
            while at < end:
                # Only requests of one piece are in flight: the consumer of the pieces sets the pace.
                (piece,) = file.readv([(at, min(PIECE_BYTES, end - at))])
                if not piece:
                    return
                at += len(piece)
                yield piece

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write a file: temporary name, read back, rename."""
        temporary = f"{self.folder}/{partial_name(name)}"
        sent = hashlib.sha256()
        with self._errors():
            with self._sftp.open(temporary, "wb") as file:
                file.set_pipelined(True)
                for piece in pieces:
                    sent.update(piece)
                    file.write(piece)
            require_equal(f"{self.folder}/{name}", sent.digest(), self.read(partial_name(name)))
            self._sftp.posix_rename(temporary, f"{self.folder}/{name}")

    def remove(self, name: str) -> None:
        """Remove a file."""
        try:
            with self._errors():
                self._sftp.remove(f"{self.folder}/{name}")
        except FileNotFoundError:
            return

    def sweep(self) -> None:
        """Remove temporary files of killed writers."""
        for item in self._all():
            if is_partial(item.name):
                self.remove(item.name)

    def close(self) -> None:
        """Close all connections."""
        for client in self._opened:
            client.close()

    def _all(self) -> list[Item]:
        with self._errors():
            try:
                entries = self._sftp.listdir_attr(self.folder)
            except FileNotFoundError as error:
                raise ConfigurationError(
                    f"folder {self.folder} behind connection {self.ssh_conn_id} is missing",
                    expected="the node's cdc_raw",
                ) from error
        return [
            Item(entry.filename, entry.st_size or 0, float(entry.st_mtime or 0))
            for entry in entries
            if stat.S_ISREG(entry.st_mode or 0) and is_name(entry.filename)
        ]

    @property
    def _sftp(self) -> SFTPClient:
        sftp: SFTPClient | None = getattr(self._own, "sftp", None)
        if sftp is None:
            sftp = self._own.sftp = self._connect()
        return sftp

    def _connect(self) -> SFTPClient:
        with from_extra("sftp"):
            from airflow.providers.ssh.hooks.ssh import SSHHook
        try:
            given = BaseHook.get_connection(self.ssh_conn_id)
            keep_secret({"password": given.password, **given.extra_dejson})
            check_files(
                {"key_file": os.path.expanduser(given.extra_dejson.get("key_file") or "")}, "key_file"
            )
            client = SSHHook(ssh_conn_id=self.ssh_conn_id, remote_host=self._host(given.host)).get_conn()
        except AirflowNotFoundException as error:
            raise _missing(self.ssh_conn_id, "ssh") from error
        self._opened.append(client)
        return client.open_sftp()

    def _host(self, host: str | None) -> str:
        """Return a host; the worker's SSH configuration may put it into a command (``ProxyCommand``)."""
        if not _HOST.fullmatch(host or ""):
            raise ConfigurationError(
                f"connection {self.ssh_conn_id} has no valid host",
                expected="a name or an address: letters, digits, and _ . - : %, not - or . first",
                remedy="correct the host of the Airflow connection; a port has its own field",
            )
        return str(host)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Translate the client's errors to ours.

        Raises:
            FileNotFoundError: Unchanged.
            ConfigurationError: The server refuses the login or the access.
            TransientError: The connection was lost.
        """
        from paramiko import AuthenticationException, BadHostKeyException, SSHException

        try:
            yield
        except FileNotFoundError:
            raise
        except (AuthenticationException, BadHostKeyException, PermissionError) as error:
            raise ConfigurationError(
                f"connection {self.ssh_conn_id} has no access to {self.folder}",
                found=type(error).__name__,
                remedy="correct its login, key or host key, or the folder's permissions",
            ) from None
        except (SSHException, EOFError, OSError) as error:
            raise TransientError(
                f"connection {self.ssh_conn_id} was lost", found=f"{type(error).__name__}: {error}"
            ) from None


def s3_store(aws_conn_id: str | None, url: str) -> S3Store:
    """Return the store of a URL.

    Args:
        aws_conn_id: An Airflow connection of type ``aws``: login and password are access key and secret, or
            both empty for boto3's own credentials; the extra may have ``region_name``, ``endpoint_url``,
            ``aws_session_token`` and ``profile_name``. None for boto3's own credentials.
        url: ``s3://bucket/prefix``.

    Raises:
        ConfigurationError: boto3 or the connection is missing, or the connection has unsupported settings.
    """
    with from_extra("s3"):
        import boto3
    bucket, prefix = split_s3_url(url)
    extra, login, password = _aws_values(aws_conn_id) if aws_conn_id else ({}, None, None)
    session = boto3.session.Session(
        aws_access_key_id=login,
        aws_secret_access_key=password,
        aws_session_token=extra.get("aws_session_token"),
        region_name=extra.get("region_name"),
        profile_name=extra.get("profile_name"),
    )
    return S3Store(session.client("s3", endpoint_url=extra.get("endpoint_url")), bucket, prefix)


def _aws_values(conn_id: str) -> tuple[dict[str, Any], str | None, str | None]:
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise _missing(conn_id, "aws") from error
    extra = connection.extra_dejson
    keep_secret({"password": connection.password, **extra})
    if connection.conn_type != "aws" or (unknown := sorted(set(extra) - set(_AWS_EXTRA))):
        found = connection.conn_type if connection.conn_type != "aws" else f"extra {', '.join(unknown)}"
        raise ConfigurationError(
            f"connection {conn_id} can't be used for S3",
            expected=f"type aws, with no other extra than {', '.join(_AWS_EXTRA)}",
            found=str(found),
            remedy="to assume a role, use profile_name of the worker's AWS configuration",
        )
    return extra, connection.login or None, connection.password or None


def _missing(conn_id: str, kind: str) -> ConfigurationError:
    return ConfigurationError(
        f"there is no connection {conn_id}",
        expected=f"one of type {kind}",
        remedy=f"airflow connections add {conn_id} --conn-type {kind} ...",
    )
