"""A real Vitess in one process: vtcombo (VTGate and the tablets of all shards) over one MySQL.

Both are made once and stay in the user's cache (:mod:`.vitess_programs`).

One mysqld serves all shards: a shard's stream shows other shards' transactions as empty ones. Nothing can be
resharded, and no tablet fails over.
"""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from server_kit.cache import require_space, say
from server_kit.ports import free_port, require_free
from server_kit.programs import run_program
from server_kit.server import Server, memory_disk
from server_kit.vitess_programs import (
    DEFAULT_VERSION,
    as_user,
    give_away,
    mysql_folder,
    mysql_version,
    vitess_program,
)

if TYPE_CHECKING:
    from pymysql.connections import Connection

    from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient

_NEEDED_BYTES: Final = 1 << 30
_SOCKET_PATH_BYTES: Final = 107
_STOP_SECONDS: Final = 30.0
_HOME: Final = "tmp"
# One mysqld serves primaries and replicas alike, hence the first line; Debian's folder for files isn't there,
# hence the last. A crash of mysqld loses nothing, one of the machine may.
MYSQL_LOGS: Final = "vt_*/*.log"
MY_CNF: Final = """\
super-read-only = false
innodb_buffer_pool_size = 128M
innodb_flush_log_at_trx_commit = 2
sync_binlog = 0
innodb_doublewrite = 0
innodb_use_native_aio = 0
performance_schema = OFF
mysqlx = OFF
secure-file-priv =
"""


@dataclass(frozen=True)
class Keyspace:
    """A keyspace.

    Args:
        name: Its name.
        shards: Its shards; ``0`` is that of an unsharded one.
        vschema: Its VSchema; default: an empty one.
    """

    name: str
    shards: Sequence[str] = ("0",)
    vschema: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sharded(self) -> bool:
        """Whether it is sharded."""
        return tuple(self.shards) != ("0",)


KEYSPACES: Final = (
    Keyspace("shop", ("-80", "80-"), {"tables": {"reference1": {"type": "reference"}}}),
    Keyspace("lookup"),
)
"""A server's default keyspaces: ``shop`` in two shards, and ``lookup`` unsharded. Table ``reference1`` of
``shop``, once created, is a reference table."""


class VitessServer(Server):
    """One Vitess. All ports are free ones unless given; ``port`` is VTGate's for gRPC.

    Args:
        folder: Where it keeps everything. Default: a temporary folder that :meth:`close` removes. In a folder
            that was used before it starts with its data. Its path must be short, for it has sockets.
        keyspaces: Its keyspaces. Tablets of types PRIMARY, REPLICA and RDONLY serve each shard.
        version: Version of the Go module: 0.24.4 is Vitess 24.0.4.
        port: Port of VTGate's gRPC.
        auth: Whether gRPC asks for a login; :attr:`connection` then has one.
        extra: Settings of :attr:`connection`'s extra, where options ask for some (TLS).
        options: Further command-line options of vtcombo.
        my_cnf: Further lines of MySQL's configuration.
        start_timeout_seconds: How long a start may take.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        keyspaces: Sequence[Keyspace] = KEYSPACES,
        version: str = DEFAULT_VERSION,
        port: int | None = None,
        auth: bool = False,
        extra: Mapping[str, Any] | None = None,
        options: Sequence[str] = (),
        my_cnf: str = "",
        start_timeout_seconds: float = 90,
    ) -> None:
        host, port = "127.0.0.1", port or free_port()
        super().__init__(
            "Vitess",
            folder,
            host=host,
            port=port,
            log="vtcombo.log",
            more_logs=(MYSQL_LOGS,),
            parent=memory_disk(),
        )
        self.keyspaces = {keyspace.name: keyspace for keyspace in keyspaces}
        self.version = version
        self.auth = auth
        self.extra = dict(extra or {})
        self.options = tuple(options)
        self.my_cnf = my_cnf
        self.start_timeout_seconds = start_timeout_seconds
        self.web_port = free_port()
        self.mysql_port = free_port()
        """Port of VTGate for MySQL's protocol; user ``root``, no password."""
        self.mysqld_port = free_port()
        self._clients: list[Connection[Any] | VtgateClient] = []

    @property
    def connection(self) -> dict[str, Any]:
        """Values of an Airflow connection to VTGate."""
        login = {"login": "cdc", "password": self._password()} if self.auth else {}
        return {"host": self.host, "port": self.port, "extra": dict(self.extra), **login}

    @property
    def tablet_folder(self) -> Path:
        """MySQL's folder: data, binlogs, ``error.log``."""
        return self.folder / "vt_0000000001"

    @property
    def mysqld_pid(self) -> int | None:
        """Id of MySQL's process, None if it doesn't run."""
        return mysqld_pid(self.tablet_folder)

    def start(self) -> Self:
        """Start it and wait until all tablets serve.

        Raises:
            ConfigurationError: A taken port, a full disk, too long a path, or a failed start with the end of
                its log.
        """
        socket = self.tablet_folder / "mysql.sock"
        if len(os.fsencode(str(socket))) > _SOCKET_PATH_BYTES:
            raise ConfigurationError(
                f"the folder {self.folder} has too long a path for MySQL's socket",
                expected=f"{socket.name} in at most {_SOCKET_PATH_BYTES} bytes",
            )
        vtcombo = vitess_program(self.version, "vtcombo")
        mysql = mysql_folder() / "usr"
        (self.folder / _HOME).mkdir(parents=True, exist_ok=True)
        require_space(self.folder, _NEEDED_BYTES, "Vitess")
        for port in (self.port, self.web_port, self.mysql_port, self.mysqld_port):
            require_free(port, self.host, "Vitess")
        if self.mysqld_pid is not None:
            raise ConfigurationError(f"a mysqld still runs in {self.tablet_folder}", remedy="stop it")
        self._write_files()
        self._process.start(
            [*as_user(), str(vtcombo), *self._arguments(mysql), *self.options],
            self.log,
            {
                "HOME": str(self.folder / _HOME),
                "TMPDIR": str(self.folder / _HOME),
                "PATH": f"{mysql / 'bin'}:{mysql / 'sbin'}:/usr/sbin:/usr/bin:/sbin:/bin",
                "VTDATAROOT": str(self.folder),
                "VTROOT": str(vtcombo.parent),
                "VT_MYSQL_ROOT": str(mysql),
                "VT_MYSQL_BASEDIR": str(mysql),
                "EXTRA_MY_CNF": str(self.folder / "own.cnf"),
                # Its hundreds of timers would wake other cores each time.
                "GOMAXPROCS": "1",
            },
        )
        self._process.wait_until(self._serves, "all tablets to serve", self.start_timeout_seconds)
        return self

    def stop(self) -> None:
        """End vtcombo, which keeps nothing, and MySQL in order.

        vtcombo's own way is slow: it keeps connections that MySQL waits for.
        """
        self._close_clients()
        mysqld = self.mysqld_pid
        self._process.kill()
        self._end_mysqld(mysqld)

    def kill(self) -> None:
        """End it and MySQL as a crash would."""
        self._close_clients()
        mysqld = self.mysqld_pid
        if mysqld is not None:
            os.kill(mysqld, signal.SIGKILL)
        self._process.kill()
        self._end_mysqld(mysqld)

    def close(self) -> None:
        """Stop, and remove the folder if it was a temporary one."""
        if self._temporary:
            self.kill()
        super().close()

    def connect(self, keyspace: str = "", **options: Any) -> Connection[Any]:
        """Return a new MySQL connection to VTGate in autocommit mode; it is closed when the server stops.

        Args:
            keyspace: Keyspace, or ``keyspace:shard``, or ``keyspace:shard@replica``.
            **options: Options of ``pymysql.connect``.
        """
        import pymysql

        connection = pymysql.connect(
            host=self.host,
            port=self.mysql_port,
            user="root",
            database=keyspace or None,
            **{"autocommit": True, **options},
        )
        self._clients.append(connection)
        return connection

    def client(self) -> VtgateClient:
        """Return a new gRPC client of VTGate; it is closed when the server stops."""
        client = self._client()
        self._clients.append(client)
        return client

    def define(
        self, keyspace: str, *statements: str, shard_by: Mapping[str, str] | None = None, vindex: str = "hash"
    ) -> None:
        """Run statements that define tables, and wait until VTGate knows the tables' columns.

        Args:
            keyspace: The keyspace.
            *statements: CREATE, ALTER, DROP TABLE and the like.
            shard_by: For new tables: the column by which its rows are spread over the shards.
            vindex: How: ``hash`` takes whole numbers, ``xxhash`` anything.

        Raises:
            ConfigurationError: VTGate doesn't learn the columns in time.
        """
        connection = self.connect(keyspace)
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            for table, column in (shard_by or {}).items():
                cursor.execute(f"ALTER VSCHEMA ON `{table}` ADD VINDEX `{vindex}`(`{column}`) USING {vindex}")
        connection.close()
        self._clients.remove(connection)
        self.wait_for_schema(keyspace)

    def wait_for_schema(self, keyspace: str, timeout_seconds: float = 30) -> None:
        """Wait until VTGate's schema tracker has seen the keyspace's tables as they are.

        Until then it refuses ``INSERT INTO t VALUES`` without a list of columns (VT09004), or takes the old
        columns.

        Raises:
            ConfigurationError: It hasn't in time.
        """
        deadline = time.monotonic() + timeout_seconds
        with self._client() as client:
            while True:
                there, known = self._columns(client, keyspace), self._tracked(keyspace)
                missing = [table for table, columns in there.items() if known.get(table) != columns]
                if not missing:
                    return
                if time.monotonic() > deadline:
                    raise ConfigurationError(
                        f"VTGate doesn't know the columns of {', '.join(sorted(missing))}",
                        expected=f"schema tracking to see them within {timeout_seconds:.0f} s",
                    )
                time.sleep(0.05)

    def wait_for_versions(
        self, keyspace: str, table: str, statements: int, timeout_seconds: float = 60
    ) -> None:
        """Wait until the tablets have recorded tables' columns after each of so many DDL statements.

        A tablet records them a moment after the statement (``--track-schema-versions``). A stream that reads
        changes before that gives them the columns of the statement before, and if another statement comes
        before that, the version between the two is lost.

        Args:
            keyspace: Its name.
            table: A regular expression for the tables' names.
            statements: How many statements there were on these tables together, ``CREATE`` included.
            timeout_seconds: How long to wait.

        Raises:
            ConfigurationError: They haven't in time.
        """
        expected = statements * len(self.keyspaces[keyspace].shards)
        sql = f"SELECT COUNT(*) FROM _vt.schema_version WHERE ddl REGEXP '\\\\b({table})\\\\b'"
        deadline = time.monotonic() + timeout_seconds
        while (found := int(self.mysqld(sql))) < expected:
            if time.monotonic() > deadline:
                raise ConfigurationError(
                    f"the tablets haven't recorded all versions of {keyspace}.{table}",
                    expected=f"{expected} within {timeout_seconds:.0f} s, one for each statement and shard",
                    found=str(found),
                )
            time.sleep(0.05)

    def mysqld(self, sql: str) -> str:
        """Run a statement on MySQL itself as its administrator, and return what its client prints."""
        mysql = mysql_folder() / "usr" / "bin" / "mysql"
        socket = str(self.tablet_folder / "mysql.sock")
        return run_program(
            [str(mysql), "--no-defaults", "-u", "vt_dba", "-S", socket, "-BNe", sql], "asking MySQL"
        )

    def purge_binlogs(self) -> None:
        """Begin a new binlog and remove all before it."""
        self.mysqld("FLUSH BINARY LOGS")
        newest = self.mysqld("SHOW BINARY LOGS").splitlines()[-1].split("\t")[0]
        self.mysqld(f"PURGE BINARY LOGS TO '{newest}'")

    def _columns(self, client: VtgateClient, keyspace: str) -> dict[str, list[str]]:
        shard = self.keyspaces[keyspace].shards[0]
        rows = client.execute(
            "SELECT table_name, column_name FROM information_schema.columns JOIN information_schema.tables "
            "USING (table_schema, table_name) WHERE table_schema = database() AND table_type = 'BASE TABLE' "
            "ORDER BY table_name, ordinal_position",
            f"{keyspace}:{shard}",
        ).texts()
        found: dict[str, list[str]] = {}
        for table, column in rows:
            found.setdefault(table, []).append(column)
        return found

    def _tracked(self, keyspace: str) -> dict[str, list[str]]:
        with urllib.request.urlopen(f"http://{self.host}:{self.web_port}/debug/vschema", timeout=10) as page:
            vschema = json.load(page)
        tables = vschema["keyspaces"][keyspace].get("tables") or {}
        return {
            name: [column["name"] for column in table.get("columns") or ()] for name, table in tables.items()
        }

    def _serves(self) -> bool:
        try:
            with self._client() as client:
                rows = client.execute("SHOW VITESS_TABLETS", timeout_seconds=2).texts()
        except TransientError:
            return False
        serving = [(row[1], row[2], row[3]) for row in rows if row[4] == "SERVING"]
        return all(
            (keyspace.name, shard, kind) in serving
            for keyspace in self.keyspaces.values()
            for shard in keyspace.shards
            for kind in ("PRIMARY", "REPLICA", "RDONLY")
        )

    def _client(self) -> VtgateClient:
        from airflow_cdc_provider.sources.vitess.connection import ConnectionValues
        from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient

        return VtgateClient(ConnectionValues.read(self.connection))

    def _arguments(self, mysql: Path) -> list[str]:
        topology = {
            "keyspaces": [
                {"name": k.name, "shards": [{"name": shard} for shard in k.shards], "replicaCount": 2}
                for k in self.keyspaces.values()
            ],
            "cells": ["test"],
        }
        auth = ["--grpc-auth-mode", "static"]
        auth += ["--grpc-auth-static-password-file", str(self.folder / "users.json")]
        return [
            "--start-mysql",
            *("--mysql-port", str(self.mysqld_port), "--db-charset", "utf8mb4"),
            *("--mysql-server-version", f"{mysql_version(mysql)}-Vitess"),
            *("--json-topo", json.dumps(topology), "--schema-dir", str(self.folder / "schema")),
            *(
                "--vschema-persistence-dir",
                str(self.folder / "vschema"),
                "--vschema-ddl-authorized-users",
                "%",
            ),
            *("--dbddl-plugin", "vttest", "--foreign-key-mode", "allow", "--enable-system-settings=true"),
            # Without, streams that read behind a DDL statement break now and then.
            "--track-schema-versions",
            *("--service-map", "grpc-vtgateservice,grpc-vtctl,grpc-vtctld"),
            *("--port", str(self.web_port), "--bind-address", self.host),
            *("--grpc-port", str(self.port), "--grpc-bind-address", self.host),
            *("--mysql-server-port", str(self.mysql_port), "--mysql-server-bind-address", self.host),
            *("--mysql-auth-server-impl", "none"),
            *(auth if self.auth else ()),
        ]

    def _write_files(self) -> None:
        (self.folder / "own.cnf").write_text(MY_CNF + self.my_cnf)
        (self.folder / "vschema").mkdir(exist_ok=True)
        for keyspace in self.keyspaces.values():
            place = self.folder / "schema" / keyspace.name
            place.mkdir(parents=True, exist_ok=True)
            vschema = {"sharded": keyspace.sharded, **keyspace.vschema}
            (place / "vschema.json").write_text(json.dumps(vschema))
        if self.auth:
            users = [{"Username": "cdc", "Password": self._password()}]
            (self.folder / "users.json").write_text(json.dumps(users))
        self.log.touch()
        give_away(self.folder)

    def _password(self) -> str:
        return "secret"

    def _end_mysqld(self, pid: int | None) -> None:
        """Wait for MySQL's end: at vtcombo's end the kernel sends it SIGTERM, as its wrapper requested."""
        deadline = time.monotonic() + _STOP_SECONDS
        while pid is not None and self.mysqld_pid == pid:
            if time.monotonic() > deadline:
                say(f"mysqld (process {pid}) outlived vtcombo; killing it")
                os.kill(pid, signal.SIGKILL)
                deadline += _STOP_SECONDS
            time.sleep(0.02)
        # Killed, it leaves these, and vtcombo would take a process that nobody has waited for yet for alive.
        for name in ("mysql.pid", "mysql.sock.lock"):
            (self.tablet_folder / name).unlink(missing_ok=True)

    def _close_clients(self) -> None:
        import pymysql

        for client in self._clients:
            try:
                client.close()
            except pymysql.err.Error as error:
                if "Already closed" not in str(error):
                    raise
        self._clients.clear()


def mysqld_pid(tablet_folder: Path) -> int | None:
    """Return the id of the MySQL process of a tablet's folder, None if it doesn't run."""
    try:
        pid = int((tablet_folder / "mysql.pid").read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return None
    # A dying process has no command any more, and keeps its ports for a moment.
    ours = not command or os.fsencode(str(tablet_folder)) in command
    return pid if ours and _lives(pid) else None


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        threads = len(os.listdir(f"/proc/{pid}/task"))
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX" or threads > 1  # the first thread ends first, the last one closes the ports
