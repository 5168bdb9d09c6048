"""``cdc-shipper``: the program that runs on a node and ships its segments.

It is for sites that don't allow logins to database nodes. It needs Python 3.9 or later, the system's ``sftp``
program for ``sftp://``, and boto3 for ``s3://``; ``make shipper`` builds it as one file::

    python3 cdc-shipper.pyz --config /etc/cdc-shipper.ini

It runs a :class:`~airflow_cdc_provider.transfer.transfer.Transfer` every few seconds. It has no state except
the files of source and target, so it can be killed and restarted at any time.
"""

from __future__ import annotations

import argparse
import configparser
import fcntl
import logging
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, TransientError
from airflow_cdc_provider.regular_files import open_regular
from airflow_cdc_provider.transfer.chunks import DEFAULT_CHUNK_BYTES, ChunkedSegments
from airflow_cdc_provider.transfer.openssh import OpenSshStore
from airflow_cdc_provider.transfer.pace import Pace
from airflow_cdc_provider.transfer.s3 import S3Store, split_s3_url
from airflow_cdc_provider.transfer.segments import require_host_id
from airflow_cdc_provider.transfer.space import measure
from airflow_cdc_provider.transfer.stores import FolderStore, RememberingStore, Store
from airflow_cdc_provider.transfer.transfer import Transfer, TransferCounts
from airflow_cdc_provider.transfer.whole import WholeSegments

NEARLY_FULL: Final = 0.8
"""Used fraction of cdc_raw from which each round logs a warning."""

_EXIT_WRONG: Final = 2
_MIB: Final = 1 << 20
_OPTIONS: Final = {
    "shipper": (
        "cdc_raw",
        "host_id",
        "target",
        "layout",
        "interval_seconds",
        "delete_shipped",
        "errors_folder",
        "parallel",
        "max_bytes_per_second",
        "chunk_bytes",
        "cdc_total_space_mib",
    ),
    "ssh": ("options",),
    "s3": ("endpoint_url", "region", "profile"),
}

_log = logging.getLogger("cdc-shipper")


@dataclass(frozen=True)
class Settings:
    """The configuration file's options; see ``packaging/shipper/cdc-shipper.ini``."""

    cdc_raw: Path
    host_id: str
    target: str
    layout: str
    interval_seconds: float
    delete_shipped: bool
    errors_folder: Path | None
    parallel: int
    max_bytes_per_second: float
    chunk_bytes: int
    total_bytes: int | None
    ssh_options: tuple[str, ...]
    s3: dict[str, str]

    @classmethod
    def read(cls, path: Path) -> Settings:
        """Read a configuration file.

        Raises:
            ConfigurationError: The file is missing or invalid; the message names the option.
        """
        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read_string(path.read_text(), str(path))
        except (OSError, configparser.Error) as error:
            raise ConfigurationError(f"{path} can't be read", found=" ".join(str(error).split())) from error
        for section in parser.sections():
            for name in parser[section]:
                if name not in _OPTIONS.get(section, ()):
                    raise ConfigurationError(f"{path} has an unknown option [{section}] {name}")
        if "shipper" not in parser:
            raise ConfigurationError(f"{path} has no section [shipper]")
        values = parser["shipper"]
        for name in ("cdc_raw", "host_id", "target"):
            if not values.get(name):
                raise ConfigurationError(f"{path} lacks an option", expected=f"{name} in [shipper]")
        target = values["target"].rstrip("/")
        try:
            return cls(
                cdc_raw=Path(values["cdc_raw"]),
                host_id=require_host_id(values["host_id"]),
                target=target,
                layout=_layout(target, values.get("layout", "")),
                interval_seconds=values.getfloat("interval_seconds", 10.0),
                delete_shipped=values.getboolean("delete_shipped", True),
                errors_folder=Path(values["errors_folder"]) if values.get("errors_folder") else None,
                parallel=values.getint("parallel", 2),
                max_bytes_per_second=values.getfloat("max_bytes_per_second", 0.0),
                chunk_bytes=values.getint("chunk_bytes", DEFAULT_CHUNK_BYTES),
                total_bytes=values.getint("cdc_total_space_mib", 0) * _MIB or None,
                ssh_options=tuple(shlex.split(parser.get("ssh", "options", fallback=""))),
                s3=dict(parser["s3"]) if "s3" in parser else {},
            )
        except ValueError as error:
            raise ConfigurationError(f"invalid value in {path}", found=str(error)) from error


def _layout(target: str, declared: str) -> str:
    possible = ("chunks",) if target.startswith("s3://") else ("whole", "chunks")
    if declared and declared not in possible:
        raise ConfigurationError(
            f"layout {declared} is not possible", expected=f"{' or '.join(possible)} for {target}"
        )
    return declared or possible[0]


class Shipper:
    """Ships one node's segments repeatedly.

    Args:
        settings: The source, the target and their options.

    Raises:
        ConfigurationError: The target's address is invalid, or boto3 is missing.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        store = target_store(settings)
        if not isinstance(store, FolderStore):  # where each listing is a request
            store = RememberingStore(store)
        self._target = (
            ChunkedSegments(store, settings.host_id, settings.chunk_bytes)
            if settings.layout == "chunks"
            else WholeSegments(store, settings.host_id)
        )
        self._source = WholeSegments(FolderStore(settings.cdc_raw), settings.host_id)
        self._errors = (
            WholeSegments(FolderStore(settings.errors_folder), settings.host_id)
            if settings.errors_folder
            else None
        )

    def ship(self) -> TransferCounts:
        """Ship all new segments once.

        Raises:
            TransientError: The target can't be reached.
            ConfigurationError: The target denies access, or cdc_raw can't be read.
        """
        settings = self.settings
        try:
            space = measure(settings.cdc_raw, settings.total_bytes, settings.host_id)
        except OSError as error:
            raise _unusable(settings.cdc_raw, error) from error
        if space.used_ratio >= NEARLY_FULL:
            _log.warning(
                "%s is %.0f%% full (%d of %d MiB)",
                settings.cdc_raw,
                100 * space.used_ratio,
                space.used_bytes // _MIB,
                space.total_bytes // _MIB,
            )
        return Transfer(
            source=self._source,
            target=self._target,
            after_transfer="delete" if settings.delete_shipped else "keep",
            errors=self._errors,
            moves_lost=False,
            parallel=settings.parallel,
            pace=Pace(settings.max_bytes_per_second or None, _log.info),
        ).run()

    def run(self, stop: threading.Event) -> None:
        """Ship until ``stop`` is set; transient errors are logged and retried.

        Raises:
            ConfigurationError: A configuration change is required.
        """
        while not stop.is_set():
            try:
                counts = self.ship()
            except TransientError as error:
                _log.warning("%s", error)
            except OSError as error:
                _log.warning("%s: %s", error.filename, error.strerror)
            else:
                if counts.copied or counts.errors or counts.failed or counts.lost:
                    _log.info("%s", " ".join(f"{name}={n}" for name, n in vars(counts).items()))
            stop.wait(self.settings.interval_seconds)


def target_store(settings: Settings) -> Store:
    """Return the store of the node's folder at the target's address.

    Raises:
        ConfigurationError: The address is wrong, or boto3 is missing.
    """
    address = urlsplit(settings.target)
    if not address.scheme:
        return FolderStore(Path(settings.target), settings.host_id)
    if address.scheme == "s3":
        bucket, prefix = split_s3_url(f"{settings.target}/{settings.host_id}")
        return S3Store(_s3_client(settings.s3), bucket, prefix)
    if address.scheme == "sftp" and address.hostname:
        login = f"{address.username}@" if address.username else ""
        port = ("-P", str(address.port)) if address.port else ()
        options = (*port, *settings.ssh_options)
        return OpenSshStore(login + address.hostname, f"{address.path}/{settings.host_id}", options)
    raise ConfigurationError(
        "invalid address of the target",
        expected="a folder, sftp://user@host/folder or s3://bucket/prefix",
        found=settings.target,
    )


def _s3_client(options: dict[str, str]) -> object:
    try:
        import boto3
    except ImportError as error:
        raise ConfigurationError(
            "boto3 is missing", remedy="install it for the Python that runs the shipper: pip install boto3"
        ) from error
    session = boto3.session.Session(
        region_name=options.get("region"), profile_name=options.get("profile") or None
    )
    return session.client("s3", endpoint_url=options.get("endpoint_url") or None)


@contextmanager
def alone(cdc_raw: Path) -> Iterator[None]:
    """Lock out a second shipper of a node; the kernel releases the locks of ended ones.

    Two of them would remove what the other one has just written. Whoever may read a file may lock it, so only
    its user may. It is removed at the end: another user may be the next one.

    Raises:
        TransientError: A shipper of this node is running.
        ConfigurationError: The folder is missing, or not writable.
    """
    path = cdc_raw / ".cdc-shipper.lock"
    try:
        while True:
            lock = open_regular(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_nlink:  # else it was released meanwhile
                    break
            except BaseException:
                os.close(lock)
                raise
            os.close(lock)
    except BlockingIOError:
        raise TransientError(f"a shipper of {cdc_raw} is already running") from None
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        if os.path.lexists(path):
            raise TransientError(
                f"the lock {path} is another user's",
                remedy="run as the service's user; remove the file if no shipper is running",
            ) from error
        raise _unusable(cdc_raw, error) from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(lock)


def _unusable(cdc_raw: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"{cdc_raw} can't be read, or not written to",
        found=error.strerror or str(error),
        remedy="run as a user of the group that owns it; docs/transfer.md shows how",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="cdc-shipper", description="Ship a Cassandra node's commit-log segments from its cdc_raw."
    )
    parser.add_argument("--config", type=Path, required=True, help="configuration file")
    parser.add_argument("--once", action="store_true", help="ship all new segments once, then exit")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)
    stop = threading.Event()
    if not given.once:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
    try:
        settings = Settings.read(given.config)
        with alone(settings.cdc_raw):
            shipper = Shipper(settings)
            if given.once:
                counts = shipper.ship()
                _log.info("%s", " ".join(f"{name}={n}" for name, n in vars(counts).items()))
                return 1 if counts.failed or counts.errors or counts.lost else 0
            shipper.run(stop)
    except ConfigurationError as error:
        _log.error("%s", error)
        return _EXIT_WRONG
    except CdcError as error:
        _log.error("%s", error)
        return 1
    except OSError as error:  # with --once: a folder isn't writable, or a disk is full
        _log.error("%s: %s", error.filename, error.strerror)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
