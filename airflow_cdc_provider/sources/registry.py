"""The sources that declarations can name: those of this package, and those of others by an entry point.

A distribution adds a source with an entry point of the group ``airflow_cdc_provider.sources``, whose name is
the source's type and whose value is ``package.module:PLUGIN``, a :class:`.plugin.SourcePlugin`. It can't
replace a source of this package.
"""

from __future__ import annotations

import importlib
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.plugin import SourcePlugin

GROUP: Final = "airflow_cdc_provider.sources"
_OWN: Final = ("cassandra", "debezium", "mongodb", "scylla", "vitess")


@cache
def source_plugin(name: str) -> SourcePlugin:
    """Return the plug-in of a source type.

    Raises:
        ConfigurationError: There is no such source, or its plug-in can't be loaded.
    """
    if name in _OWN:
        own: SourcePlugin = importlib.import_module(f"{__package__}.{name}.plugin").PLUGIN
        return own
    if name not in (others := _entry_points()):
        raise ConfigurationError(
            "invalid value for option source.type",
            expected=f"one of {', '.join(source_names())}",
            found=repr(name),
        )
    try:
        plugin = others[name].load()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"the plug-in of source {name} can't be loaded",
            expected=f"an instance of SourcePlugin at {others[name].value}",
            found=f"{type(error).__name__}: {error}",
            remedy=f"reinstall the distribution that has the entry point {name} of group {GROUP}",
        ) from error
    if not isinstance(plugin, SourcePlugin) or plugin.name != name:
        raise ConfigurationError(
            f"the plug-in of source {name} is invalid",
            expected=f"an instance of SourcePlugin with the name {name} at {others[name].value}",
            found=repr(plugin),
        )
    return plugin


def source_names() -> tuple[str, ...]:
    """Return the types of all sources, this package's first."""
    return *_OWN, *sorted(_entry_points().keys() - set(_OWN))


def _entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}
