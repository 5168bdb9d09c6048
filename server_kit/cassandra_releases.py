"""What differs between releases of Cassandra when a node starts: Java, names of settings, its first words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_EXPORTS = (
    "java.base/jdk.internal.misc",
    "java.base/java.lang.ref",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.management/com.sun.jmx.remote.security",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.sql/java.sql",
    "jdk.unsupported/sun.misc",
)
_OPENS = (
    *(f"java.base/java.{part}" for part in ("lang", "lang.module", "lang.reflect", "io", "nio", "util")),
    "java.base/sun.nio.ch",
    *(
        f"java.base/jdk.internal.{part}"
        for part in ("loader", "math", "module", "ref", "reflect", "util.jar")
    ),
    "jdk.management/com.sun.management.internal",
)
_MODULES = (
    "-Djdk.attach.allowAttachSelf=true",
    "-Dio.netty.tryReflectionSetAccessible=true",
    *(flag for name in _EXPORTS for flag in ("--add-exports", f"{name}=ALL-UNNAMED")),
    *(flag for name in _OPENS for flag in ("--add-opens", f"{name}=ALL-UNNAMED")),
)
_BEFORE_UNITS = {
    "cdc_total_space": "cdc_total_space_in_mb",
    "cdc_free_space_check_interval": "cdc_free_space_check_interval_ms",
    "commitlog_sync_period": "commitlog_sync_period_in_ms",
    "commitlog_segment_size": "commitlog_segment_size_in_mb",
    "materialized_views_enabled": "enable_materialized_views",
}
_SEED_OF_3 = {  # a node by itself: seeds have no port there
    "class_name": "org.apache.cassandra.locator.SimpleSeedProvider",
    "parameters": [{"seeds": "127.0.0.1"}],
}
_ONLY_FROM_5 = ("storage_compatibility_mode", "commitlog_disk_access_mode")


def java_flags(version: str) -> tuple[str, ...]:
    """Return Java's major version: 17 for Cassandra 5.0, 11 for 4.0 and 4.1, 8 for 3.11."""
    if _number(version) >= (5, 0):
        return ("-Djava.security.manager=allow", *_MODULES)
    return _MODULES if _number(version) >= (4, 0) else ()


def yaml_settings(version: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of 5.0 in a release's own words: without units before 4.1."""
    named = dict(settings)
    if _number(version) < (5, 0):
        for name in _ONLY_FROM_5:
            named.pop(name, None)
    if _number(version) >= (4, 1):
        return named
    if _number(version) < (4, 0):
        named |= {"start_native_transport": True, "start_rpc": False, "seed_provider": [_SEED_OF_3]}
    return {
        _BEFORE_UNITS.get(name, name): int(str(value).removesuffix("MiB").removesuffix("ms"))
        if name in _BEFORE_UNITS and not isinstance(value, bool)
        else value
        for name, value in named.items()
    }


def ready_words(version: str) -> str:
    """Return what a node logs once it serves clients."""
    return "Startup complete" if _number(version) >= (4, 0) else "Starting listening for CQL clients"


def native_protocol(version: str) -> int:
    """Return the newest version of the native protocol that is not a preview."""
    return 5 if _number(version) >= (4, 0) else 4


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
