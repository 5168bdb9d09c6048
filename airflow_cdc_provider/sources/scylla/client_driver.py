"""Detects which of the two drivers that share the package ``cassandra`` is active.

``scylla-driver`` is a shard-aware fork of ``cassandra-driver`` with the same modules. Both can be installed
in one environment, but only the last one works: it has overwritten the other's files, and uninstalling either
one removes files of both. The modules identify the active driver, and the package metadata shows whether the
other one is installed too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from typing import Final

from airflow_cdc_provider.sources.contract import Finding

_STOCK: Final = "cassandra-driver"
_SHARD_AWARE: Final = "scylla-driver"


@dataclass(frozen=True)
class ClientDriver:
    """The imported driver.

    Args:
        name: Name of its package.
        version: The version in its modules.
        installed: Versions of the installed driver packages, by name.
    """

    name: str
    version: str
    installed: Mapping[str, str]

    @classmethod
    def detect(cls) -> ClientDriver:
        """Inspect the imported modules and the installed packages."""
        import cassandra
        import cassandra.cluster

        name = _SHARD_AWARE if hasattr(cassandra.cluster, "ShardAwareOptions") else _STOCK
        return cls(name, cassandra.__version__, _installed((d.name, d.version) for d in distributions()))

    def findings(self) -> Iterator[Finding]:
        """Report the driver, and conflicting packages."""
        shards = ", which is shard-aware" if self.name == _SHARD_AWARE else ""
        yield Finding("ok", "driver", f"{self.name} {self.version}{shards}")
        if len(self.installed) > 1:
            both = ", ".join(f"{name} {version}" for name, version in sorted(self.installed.items()))
            yield Finding(
                "warning",
                "driver",
                f"{both} are both installed, into the same files: {self.name} was installed last",
                f"pip uninstall {_STOCK} {_SHARD_AWARE}, then install only the one that you need",
            )


def _installed(packages: Iterable[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, version in packages:
        plain = re.sub(r"[-_.]+", "-", name).lower()
        if plain in (_STOCK, _SHARD_AWARE):
            found.setdefault(plain, version)
    return found
