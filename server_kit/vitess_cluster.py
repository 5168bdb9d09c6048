"""A whole Vitess cluster, for reshards and lost servers: etcd, vtctld, vtgate, vttablets with their MySQL.

Slower and larger than :class:`~server_kit.vitess.VitessServer` (1.4 GB for three tablets), which serves for
everything else.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError
from server_kit.cache import cached, require_space, say
from server_kit.debian import unpack_packages
from server_kit.ports import free_port
from server_kit.process import ServerProcess
from server_kit.programs import run_program
from server_kit.server import memory_disk
from server_kit.vitess import MY_CNF, MYSQL_LOGS, Keyspace, mysqld_pid
from server_kit.vitess_programs import (
    DEFAULT_VERSION,
    as_user,
    give_away,
    mysql_folder,
    vitess_program,
    wrap_programs,
)

if TYPE_CHECKING:
    from pymysql.connections import Connection

    from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient

_HOST: Final = "127.0.0.1"
_CELL: Final = "zone1"
_NEEDED_BYTES: Final = 3 << 30


@dataclass
class _Tablet:
    """A vttablet and its MySQL.

    Args:
        uid: Its number.
        keyspace: Whose tablet it is.
        shard: Likewise.
        mysql_port: MySQL's port.
    """

    uid: int
    keyspace: str
    shard: str
    mysql_port: int
    process: ServerProcess | None = None

    @property
    def alias(self) -> str:
        return f"{_CELL}-{self.uid:010d}"


class VitessCluster:
    """A cluster with a primary per shard. ``with`` starts it, stops it, and cleans up.

    Args:
        keyspaces: Its keyspaces.
        replicas: How many further tablets each shard has, which can become its primary.
        version: Version of the Go module.
        start_timeout_seconds: How long each part may take to start.
    """

    def __init__(
        self,
        keyspaces: Sequence[Keyspace],
        *,
        replicas: int = 0,
        version: str = DEFAULT_VERSION,
        start_timeout_seconds: float = 120,
    ) -> None:
        self.keyspaces = list(keyspaces)
        self.replicas = replicas
        self.version = version
        self.start_timeout_seconds = start_timeout_seconds
        self.folder = Path(tempfile.mkdtemp(prefix="vtc-", dir=memory_disk()))
        self.port = free_port()
        """Port of VTGate's gRPC."""
        self.mysql_port = free_port()
        """Port of VTGate for MySQL's protocol; user ``root``, no password."""
        self._etcd_port = free_port()
        self.vtctld_port = free_port()
        """Port of vtctld's gRPC."""
        self._processes: list[ServerProcess] = []
        self._tablets: list[_Tablet] = []
        self._gate: ServerProcess | None = None
        self._next_uid = 100

    @property
    def connection(self) -> dict[str, Any]:
        """Values of an Airflow connection to VTGate."""
        return {"host": _HOST, "port": self.port, "extra": {}}

    def start(self) -> Self:
        """Start all parts and wait until each shard's primary serves.

        Raises:
            ConfigurationError: A part doesn't start; with the end of its log.
        """
        require_space(self.folder, _NEEDED_BYTES, "a cluster of Vitess")
        (self.folder / "tmp").mkdir()
        (self.folder / "own.cnf").write_text(MY_CNF.partition("\n")[2].replace("128M", "64M"))
        give_away(self.folder)
        self._start_etcd()
        own = ("--service-map", "grpc-vtctl,grpc-vtctld", "--grpc-port", str(self.vtctld_port))
        self._run("vtctld", [*self._topology(), "--cell", _CELL, *own, *self._listens()])
        etcd = f"{_HOST}:{self._etcd_port}"
        self._until(
            lambda: self.tried("AddCellInfo", "--root", f"/vitess/{_CELL}", "--server-address", etcd, _CELL)
        )
        for keyspace in self.keyspaces:
            self.control("CreateKeyspace", "--durability-policy", "none", keyspace.name)
        self.add_shards({k.name: k.shards for k in self.keyspaces})
        for keyspace in self.keyspaces:
            self.apply_vschema(keyspace.name, {**keyspace.vschema, "sharded": keyspace.sharded})
        self.start_gate()
        return self

    def start_gate(self) -> None:
        """Start VTGate and wait until it has found each shard's primary."""
        gate = ("--cell", _CELL, "--cells-to-watch", _CELL, "--tablet-types-to-wait", "PRIMARY")
        mysql = ("--mysql-server-port", str(self.mysql_port), "--mysql-server-bind-address", _HOST)
        own = ("--service-map", "grpc-vtgateservice", "--grpc-port", str(self.port))
        auth = ("--mysql-auth-server-impl", "none", "--vschema-ddl-authorized-users", "%")
        self._gate = self._run("vtgate", [*self._topology(), *gate, *mysql, *own, *auth, *self._listens()])
        self._until_primaries_serve()

    def kill_gate(self) -> None:
        """End VTGate as a crash would."""
        assert self._gate is not None
        self._gate.kill()

    def primary(self, keyspace: str, shard: str) -> str:
        """Return the alias of a shard's primary."""
        tablets = self.control("GetTablets", "--keyspace", keyspace, "--shard", shard).splitlines()
        return next(line.split()[0] for line in tablets if line.split()[3] == "primary")

    def plan_reparent(self, keyspace: str, shard: str) -> None:
        """Make another tablet the shard's primary, in order."""
        self.control(
            "PlannedReparentShard", f"{keyspace}/{shard}", "--avoid-primary", self.primary(keyspace, shard)
        )
        self._until_primaries_serve()

    def lose_primary(self, keyspace: str, shard: str) -> str:
        """Kill a shard's primary with its MySQL, make a replica the primary, and return who was lost."""
        tablet = self._tablet(self.primary(keyspace, shard))
        assert tablet.process is not None
        tablet.process.kill()
        self._kill_mysqld(tablet)
        ignored = ("--ignore-replicas", tablet.alias, "--wait-replicas-timeout", "5s")
        self._until(lambda: self.tried("EmergencyReparentShard", f"{keyspace}/{shard}", *ignored))
        self._until_primaries_serve()
        return tablet.alias

    def restart_mysql(self, keyspace: str, shard: str) -> None:
        """Kill the MySQL of a shard's primary, and start it again."""
        tablet = self._tablet(self.primary(keyspace, shard))
        self._kill_mysqld(tablet)
        self._start_mysql(tablet)
        self._until_primaries_serve()

    def _tablet(self, alias: str) -> _Tablet:
        return next(tablet for tablet in self._tablets if tablet.alias == alias)

    def _kill_mysqld(self, tablet: _Tablet) -> None:
        folder = self._tablet_folder(tablet)
        if (pid := mysqld_pid(folder)) is not None:
            os.kill(pid, signal.SIGKILL)
        while mysqld_pid(folder) is not None:
            time.sleep(0.02)
        for name in ("mysql.pid", "mysql.sock", "mysql.sock.lock"):
            (folder / name).unlink(missing_ok=True)

    def _until_primaries_serve(self) -> None:
        wanted = {(keyspace.name, shard) for keyspace in self.keyspaces for shard in keyspace.shards}
        self._until(lambda: self._serves(wanted))

    def add_shards(self, shards: Mapping[str, Sequence[str]]) -> None:
        """Start the tablets of some shards, by keyspace, and make the first of each the primary."""
        wanted = [(keyspace, shard) for keyspace, names in shards.items() for shard in names]
        for keyspace, shard in wanted:
            made = [self._start_tablet(keyspace, shard) for _ in range(1 + self.replicas)]
            for tablet in made:
                self._until(lambda tablet=tablet: tablet.alias in self.control("GetTablets"))
            name, first = f"{keyspace}/{shard}", made[0].alias
            self._until(lambda n=name, t=first: self.tried("PlannedReparentShard", n, "--new-primary", t))

    def reshard(self, keyspace: str, sources: Sequence[str], targets: Sequence[str]) -> None:
        """Copy shards to new ones and have these serve; the old ones are there until :meth:`complete`."""
        self.add_shards({keyspace: targets})
        shards = ("--source-shards", ",".join(sources), "--target-shards", ",".join(targets))
        self._reshard(keyspace, "create", *shards, "--tablet-types", "primary")
        self._until(
            lambda: (
                "Copy phase completed"
                in self.control("Workflow", "--keyspace", keyspace, "show", "--workflow", "r1")
            )
        )
        self._reshard(keyspace, "switchtraffic")
        self._until(lambda: self._serves({(keyspace, shard) for shard in targets}))

    def complete(self, keyspace: str) -> None:
        """End a reshard: the old shards disappear."""
        self._reshard(keyspace, "complete")

    def control(self, *arguments: str) -> str:
        """Run vtctldclient and return what it prints."""
        program = str(vitess_program(self.version, "vtctldclient"))
        return run_program(
            [program, "--server", f"{_HOST}:{self.vtctld_port}", *arguments], f"vtctldclient {arguments[0]}"
        )

    def tried(self, *arguments: str) -> bool:
        """Run vtctldclient, and return whether it succeeded."""
        try:
            self.control(*arguments)
        except ConfigurationError:
            return False
        return True

    def apply_vschema(self, keyspace: str, vschema: Mapping[str, Any]) -> None:
        """Set a keyspace's VSchema."""
        self.control("ApplyVSchema", "--vschema", json.dumps(dict(vschema)), keyspace)

    def connect(self, keyspace: str = "") -> Connection[Any]:
        """Return a new MySQL connection to VTGate in autocommit mode. The caller closes it."""
        import pymysql

        return pymysql.connect(
            host=_HOST, port=self.mysql_port, user="root", database=keyspace or None, autocommit=True
        )

    def client(self) -> VtgateClient:
        """Return a new gRPC client of VTGate. The caller closes it."""
        from airflow_cdc_provider.sources.vitess.connection import ConnectionValues
        from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient

        return VtgateClient(ConnectionValues.read(self.connection))

    def close(self) -> None:
        """End all parts, which keep nothing, and remove the folder."""
        for process in reversed(self._processes):
            process.end()
        self._processes.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

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

    def _start_etcd(self) -> None:
        usr = cached("etcd", "debian-sid", _unpack_etcd, "etcd of Debian sid (20 MB)") / "usr"
        client, peer = (f"http://{_HOST}:{port}" for port in (self._etcd_port, free_port()))
        self._run(
            str(usr / "bin" / "etcd"),
            [
                *("--data-dir", str(self.folder / "etcd"), "--initial-cluster", f"default={peer}"),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            ],
        )

    def _start_tablet(self, keyspace: str, shard: str) -> _Tablet:
        tablet = _Tablet(self._next_uid, keyspace, shard, free_port())
        self._next_uid += 100
        self._tablets.append(tablet)
        self._start_mysql(tablet)
        path = ("--tablet-path", f"{_CELL}-{tablet.uid}", "--tablet-hostname", _HOST)
        init = ("--init-keyspace", keyspace, "--init-shard", shard, "--init-tablet-type", "replica")
        services = "grpc-queryservice,grpc-tabletmanager,grpc-updatestream"
        own = ("--service-map", services, "--grpc-port", str(free_port()), "--track-schema-versions")
        health = ("--health-check-interval", "5s", "--heartbeat-enable", "--heartbeat-interval", "1s")
        tablet.process = self._run(
            "vttablet", [*self._topology(), *path, *init, *own, *health, *self._listens()]
        )
        return tablet

    def _start_mysql(self, tablet: _Tablet) -> None:
        uid, port = str(tablet.uid), str(tablet.mysql_port)
        self._run("mysqlctld", ["--tablet-uid", uid, "--mysql-port", port, "--db-charset", "utf8mb4"])
        self._until((self._tablet_folder(tablet) / "mysql.sock").exists)

    def _tablet_folder(self, tablet: _Tablet) -> Path:
        return self.folder / f"vt_{tablet.uid:010d}"

    def _reshard(self, keyspace: str, *arguments: str) -> None:
        self.control("Reshard", "--workflow", "r1", "--target-keyspace", keyspace, *arguments)

    def _serves(self, wanted: set[tuple[str, str]]) -> bool:
        try:
            with self.client() as client:
                rows = client.execute("SHOW VITESS_TABLETS", timeout_seconds=2).texts()
        except CdcError:
            return False
        return wanted <= {(row[1], row[2]) for row in rows if row[3:5] == ["PRIMARY", "SERVING"]}

    def _topology(self) -> list[str]:
        server = f"{_HOST}:{self._etcd_port}"
        own = ("--topo-implementation", "etcd2", "--topo-global-root", "/vitess/global")
        return [*own, "--topo-global-server-address", server]

    @staticmethod
    def _listens() -> tuple[str, ...]:
        """Return where it listens, with a port for its web page."""
        return ("--port", str(free_port()), "--bind-address", _HOST, "--grpc-bind-address", _HOST)

    def _run(self, name: str, arguments: Sequence[str]) -> ServerProcess:
        program = name if "/" in name else str(vitess_program(self.version, name))
        number = len(self._processes)
        log = self.folder / f"{number}-{Path(name).name}.log"
        mysql = mysql_folder() / "usr"
        process = ServerProcess(f"{Path(name).name} of Vitess", log, [self.folder / MYSQL_LOGS])
        self._processes.append(process)
        process.start(
            [*as_user(), program, *arguments],
            log,
            {
                "HOME": str(self.folder / "tmp"),
                "TMPDIR": str(self.folder / "tmp"),
                "PATH": f"{mysql / 'bin'}:{mysql / 'sbin'}:/usr/sbin:/usr/bin:/sbin:/bin",
                "VTDATAROOT": str(self.folder),
                "VTROOT": str(self.folder),
                "VT_MYSQL_ROOT": str(mysql),
                "VT_MYSQL_BASEDIR": str(mysql),
                "EXTRA_MY_CNF": str(self.folder / "own.cnf"),
            },
        )
        say(f"started {process.name}")
        return process

    def _until(self, ready: Any) -> None:
        """Wait for something that the process started last has to do."""
        process = self._processes[-1]
        process.wait_until(ready, "to be ready", self.start_timeout_seconds)


def _unpack_etcd(folder: Path) -> None:
    unpack_packages(folder, "sid", ["etcd-server"], with_dependencies=True)
    wrap_programs(folder, ["bin/etcd"])
