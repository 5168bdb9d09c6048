"""Which of the two drivers that share the package ``cassandra`` works here.

``scylla-driver`` is a fork of ``cassandra-driver`` with the same modules; it asks the shard with the data.
Both can be installed in one environment, but not both work: the one that was installed last has written over
the other's files, and uninstalling either takes files from both. So the modules tell which one it is, and the
lists of installed packages whether there is another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from typing import Final

from airflow_cdc_provider.sources.base import Finding

_STOCK: Final = "cassandra-driver"
_SHARD_AWARE: Final = "scylla-driver"


@dataclass(frozen=True)
class ClientDriver:
    """The driver that is imported.

    Args:
        name: Of its package.
        version: What its modules say of themselves.
        installed: Versions of both drivers' packages that are installed, by name.
    """

    name: str
    version: str
    installed: Mapping[str, str]

    @classmethod
    def present(cls) -> ClientDriver:
        """Look at what is imported and installed."""
        import cassandra
        import cassandra.cluster

        name = _SHARD_AWARE if hasattr(cassandra.cluster, "ShardAwareOptions") else _STOCK
        return cls(name, cassandra.__version__, _installed((d.name, d.version) for d in distributions()))

    def findings(self) -> Iterator[Finding]:
        """Tell of it, and of what is mixed up."""
        shards = ", which asks the shard that has the data" if self.name == _SHARD_AWARE else ""
        yield Finding("ok", "driver", f"{self.name} {self.version}{shards}")
        if len(self.installed) > 1:
            both = ", ".join(f"{name} {version}" for name, version in sorted(self.installed.items()))
            yield Finding(
                "warning",
                "driver",
                f"{both} are both installed, into the same files: {self.name} was installed last",
                f"pip uninstall {_STOCK} {_SHARD_AWARE}, then install the one that is wanted",
            )


def _installed(packages: Iterable[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, version in packages:
        plain = re.sub(r"[-_.]+", "-", name).lower()
        if plain in (_STOCK, _SHARD_AWARE):
            found.setdefault(plain, version)
    return found
