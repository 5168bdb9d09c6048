"""One real PostgreSQL with logical decoding, unpacked from Debian; nothing is installed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final, Self

from server_kit.cache import cached, require_space
from server_kit.debian import unpack_packages
from server_kit.ports import free_port, require_free
from server_kit.programs import run_program
from server_kit.server import Server
from server_kit.vitess_programs import as_user, give_away, wrap_programs

VERSION: Final = "17"
"""Major version: that of Debian's suite :data:`_SUITE`."""
_SUITE: Final = "trixie"
_NEEDED_BYTES: Final = 512 << 20
_PROGRAMS: Final = tuple(f"lib/postgresql/{VERSION}/bin/{name}" for name in ("initdb", "postgres", "psql"))
# What compiles queries, and Perl, are most of it.
_UNUSED: Final = (
    "usr/share/doc",
    "usr/share/perl*",
    "usr/lib/*/libLLVM*",
    "usr/lib/*/perl*",
    "usr/lib/llvm*",
    "var",
)
USER: Final = "postgres"


def postgres_folder() -> Path:
    """Return where PostgreSQL is unpacked, downloaded if need be.

    Raises:
        ConfigurationError: apt can't give it.
    """
    return cached("postgres", f"debian-{_SUITE}", _unpack, f"PostgreSQL {VERSION} of Debian {_SUITE} (90 MB)")


def _unpack(folder: Path) -> None:
    unpack_packages(folder, _SUITE, [f"postgresql-{VERSION}"], with_dependencies=True)
    wrap_programs(folder, _PROGRAMS)
    for path in (path for pattern in _UNUSED for path in folder.glob(pattern)):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


class PostgresServer(Server):
    """One PostgreSQL whose write-ahead log can be decoded. User ``postgres`` needs no password.

    Args:
        folder: Where it keeps everything. Default: a temporary folder that :meth:`close` removes.
        port: Port for clients.
        start_timeout_seconds: How long a start may take.
    """

    def __init__(
        self, folder: Path | None = None, *, port: int | None = None, start_timeout_seconds: float = 60
    ) -> None:
        super().__init__("PostgreSQL", folder, host="127.0.0.1", port=port or free_port(), log="postgres.log")
        self.start_timeout_seconds = start_timeout_seconds

    def start(self) -> Self:
        """Make its files if there are none, start it, and wait until it answers.

        Raises:
            ConfigurationError: A taken port, a full disk, or a failed start with the end of its log.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        require_space(self.folder, _NEEDED_BYTES, "PostgreSQL")
        require_free(self.port, self.host, "PostgreSQL")
        data = self.folder / "data"
        give_away(self.folder)
        programs = self._programs()
        if not data.is_dir():
            form = ["--encoding=UTF8", "--locale=C.UTF-8", f"--username={USER}", "--auth=trust", "--no-sync"]
            run_program([*as_user(), str(programs / "initdb"), *form, str(data)], "making PostgreSQL's files")
        settings = {
            "listen_addresses": self.host,
            "port": str(self.port),
            "unix_socket_directories": "",
            "wal_level": "logical",
            "fsync": "off",
            "jit": "off",
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        self._process.start([*as_user(), str(programs / "postgres"), "-D", str(data), *options], self.log)
        self._process.wait_until(self._answers, "an answer to a client", self.start_timeout_seconds)
        return self

    def execute(self, script: str, database: str = "postgres") -> str:
        """Run statements of SQL, each in a transaction of its own, and return what they give, without frames.

        Args:
            script: The statements.
            database: In which database.
        """
        with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
            file.write(script)
            file.flush()
            return run_program([*self._client(database), "-f", file.name], "running SQL")

    def _programs(self) -> Path:
        """Return where the programs are.

        PostgreSQL looks at its files with the rights of who it runs as alone, who can't enter root's cache.
        """
        folder, below = postgres_folder(), f"usr/lib/postgresql/{VERSION}/bin"
        if not as_user():
            return folder / below
        if not (self.folder / "usr").is_dir():
            shutil.copytree(folder / "usr", self.folder / "usr", symlinks=True)
        return self.folder / below

    def _client(self, database: str) -> list[str]:
        psql = postgres_folder() / f"usr/lib/postgresql/{VERSION}/bin/psql"
        address = f"postgresql://{USER}@{self.host}:{self.port}/{database}"
        return [str(psql), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", address]

    def _answers(self) -> bool:
        asked = subprocess.run(
            [*self._client("postgres"), "-c", "SELECT 1"], capture_output=True, check=False
        )
        return asked.returncode == 0

    def _close_clients(self) -> None:
        """Clients end by themselves."""
