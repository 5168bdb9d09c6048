"""Options that only some sources support; each plug-in lists its own."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError

_LIMITED: Final = (
    "lake.static_columns",
    "signals.collection",
    "publish.cassandra",
    "publish.event_index",
    "publish.exclude_columns",
    "publish.mongodb",
    "publish.outbox",
    "publish.schema_changes",
    "publish.schema_changes_topic",
    "publish.scylla",
    "publish.skip_unchanged",
    "publish.transaction_topic",
    "publish.transactions",
    "publish.unwrap",
    "publish.vitess",
)
_LIMITED_ENVELOPES: Final = ("document", "datastax", "datastax-cells")


def require_supported(kind: str, supports: Collection[str], declared: Any) -> None:
    """Reject options without effect for a source.

    Args:
        kind: Type of the source.
        supports: Attribute ``supports`` of its plug-in.
        declared: The sections of the declaration, as attributes.

    Raises:
        ConfigurationError: Names the first such option.
    """
    chosen = [name for name in _LIMITED if _is_set(declared, name)]
    if declared.publish.envelope in _LIMITED_ENVELOPES:
        chosen.append(f"publish.envelope: {declared.publish.envelope}")
    for name in chosen:
        if name not in supports:
            raise ConfigurationError(
                f"option {name} is not supported for source {kind}",
                found=f"source {kind}",
                expected="its default",
            )


def _is_set(declared: Any, name: str) -> bool:
    section, _, option = name.partition(".")
    options = getattr(declared, section)
    return bool(getattr(options, option) != getattr(type(options)(), option))
