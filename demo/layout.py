"""The demo's folder: `.demo` in the clone unless CDC_DEMO names another."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def _folder() -> Path:
    return Path(os.environ.get("CDC_DEMO", ROOT / ".demo")).absolute()


@dataclass(frozen=True)
class Layout:
    """Paths inside the demo's folder."""

    folder: Path = field(default_factory=_folder)

    @property
    def cassandra(self) -> Path:
        """Data of the Cassandra node."""
        return self.folder / "cassandra"

    @property
    def mongodb(self) -> Path:
        """Data of the MongoDB server."""
        return self.folder / "mongodb"

    @property
    def airflow(self) -> Path:
        """AIRFLOW_HOME."""
        return self.folder / "airflow"

    @property
    def connectors(self) -> Path:
        """The connectors' YAML files."""
        return self.folder / "connectors"

    @property
    def warehouse(self) -> Path:
        """The lake."""
        return self.folder / "lake"

    @property
    def ports(self) -> Path:
        """Ports of the servers, for ``make ui``."""
        return self.folder / "ports.json"

    @property
    def logs(self) -> Path:
        """Output of the DAG runs."""
        return self.folder / "logs"
