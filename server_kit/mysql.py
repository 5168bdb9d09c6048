"""One real MySQL with a row-based binlog: the same program that Vitess runs on."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final, Self

from server_kit.cache import require_space
from server_kit.ports import free_port, require_free
from server_kit.programs import run_program
from server_kit.server import Server
from server_kit.vitess_programs import as_user, give_away, mysql_folder

USER: Final = "root"
_NEEDED_BYTES: Final = 1 << 30


class MySqlServer(Server):
    """One MySQL. User ``root`` needs no password; the server's own time zone is two hours east of UTC.

    Args:
        folder: Where it keeps everything. Default: a temporary folder that :meth:`close` removes. Its path
            must be short, for it has a socket.
        port: Port for clients.
        start_timeout_seconds: How long a start may take.
    """

    def __init__(
        self, folder: Path | None = None, *, port: int | None = None, start_timeout_seconds: float = 120
    ) -> None:
        super().__init__("MySQL", folder, host="127.0.0.1", port=port or free_port(), log="mysqld.log")
        self.start_timeout_seconds = start_timeout_seconds

    def start(self) -> Self:
        """Make its files if there are none, start it, and wait until it answers.

        Raises:
            ConfigurationError: A taken port, a full disk, or a failed start with the end of its log.
        """
        usr = mysql_folder() / "usr"
        self.folder.mkdir(parents=True, exist_ok=True)
        require_space(self.folder, _NEEDED_BYTES, "MySQL")
        require_free(self.port, self.host, "MySQL")
        data = self.folder / "data"
        program = [
            *as_user(),
            str(usr / "sbin/mysqld"),
            "--no-defaults",
            f"--basedir={usr}",
            f"--datadir={data}",
        ]
        give_away(self.folder)
        if not data.is_dir():
            run_program([*program, "--initialize-insecure"], "making MySQL's files")
        settings = {
            "bind-address": self.host,
            "port": str(self.port),
            "socket": str(self.folder / "mysql.sock"),
            "server-id": "1",
            "log-bin": "binlog",
            "gtid-mode": "ON",
            "enforce-gtid-consistency": "ON",
            "default-time-zone": "+02:00",
            "performance-schema": "OFF",
            "mysqlx": "OFF",
            "secure-file-priv": "",
            "innodb-buffer-pool-size": "64M",
            "innodb-flush-log-at-trx-commit": "2",
            "sync-binlog": "0",
            "innodb-use-native-aio": "0",
        }
        self._process.start([*program, *(f"--{name}={value}" for name, value in settings.items())], self.log)
        self._process.wait_until(self._answers, "an answer to a client", self.start_timeout_seconds)
        return self

    def execute(self, script: str) -> str:
        """Run statements of SQL, and return what they give, without heads and frames.

        Args:
            script: The statements.
        """
        return run_program([*self._client(), "-e", script], "running SQL")

    def _client(self) -> list[str]:
        mysql = mysql_folder() / "usr/bin/mysql"
        form = ["--no-defaults", "--batch", "--raw", "--skip-column-names", "--default-character-set=utf8mb4"]
        return [str(mysql), *form, f"--host={self.host}", f"--port={self.port}", f"--user={USER}"]

    def _answers(self) -> bool:
        asked = subprocess.run([*self._client(), "-e", "SELECT 1"], capture_output=True, check=False)
        return asked.returncode == 0

    def _close_clients(self) -> None:
        """Clients end by themselves."""
