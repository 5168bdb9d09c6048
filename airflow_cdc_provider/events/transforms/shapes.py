"""Which transforms fit what a source's values are: told when the declaration is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from airflow_cdc_provider.events.transforms.expression import parse_expression
from airflow_cdc_provider.events.transforms.expression_tree import Kind
from airflow_cdc_provider.events.transforms.options import FilterOptions, RouteOptions
from airflow_cdc_provider.exceptions import ConfigurationError

Shape = Literal["text", "documents", "cells", "avro", "rows"]
"""What values are.

``text``       texts that hold the whole event
``documents``  envelopes whose ``before`` and ``after`` are JSON texts
``cells``      envelopes of Cassandra, whose rows are structs of cells
``avro``       structs with Avro schemas of their own
``rows``       structs
"""


def validate_transforms(transforms: Sequence[Any], shape: Shape) -> None:
    """Refuse transforms that look into what has no fields.

    Args:
        transforms: The options.
        shape: What values are.

    Raises:
        ConfigurationError: Names the first.
    """
    if shape == "rows":
        return
    for number, one in enumerate(transforms):
        place = f"publish.transforms[{number}]"
        touches = one.type in _OF_VALUES or (
            one.type in _OF_SIDES and (one.target == "value" or shape == "avro")
        )
        if shape in ("text", "avro") and (touches or one.type == "logical_table"):
            raise ConfigurationError(
                f"option {place} changes fields of a value that has none here",
                found=f"type {one.type}",
                expected="one of topics, headers or keys, or another publish.envelope",
            )
        if shape == "documents" and one.type in ("unwrap", "partition"):
            raise ConfigurationError(
                f"option {place} looks into documents, which are JSON texts here",
                found=f"type {one.type}",
                remedy="set publish.unwrap.enabled, which comes before publish.transforms",
            )
        if shape == "cells" and one.type in ("unwrap", "partition"):
            raise ConfigurationError(
                f"option {place} is for envelopes with rows, and Cassandra's have cells",
                found=f"type {one.type}",
                remedy="take the row out by type extract, field after; or use publish.envelope: datastax",
            )
        for text, kind in _expressions(one):
            for reference in parse_expression(text, kind).references():
                if reference.root != "value" or not reference.path:
                    continue
                looks_into = reference.path[0] in ("before", "after") and len(reference.path) > 1
                if shape == "text" or (shape == "documents" and looks_into):
                    raise ConfigurationError(
                        f"an expression of {place} looks into a text at {reference.where}",
                        remedy="set publish.unwrap.enabled, which shows documents by their fields",
                    )


_OF_SIDES: Final = (
    "fields",
    "mask",
    "truncate",
    "hash",
    "cast",
    "timestamp",
    "insert_field",
    "value_to_header",
    "hoist",
    "extract",
    "flatten",
    "schema",
)
"""Types that have a target."""
_OF_VALUES: Final = ("header_to_value", "value_to_key", "partition", "unwrap")
"""Types that read or change fields of values."""


def _expressions(one: Any) -> list[tuple[str, Kind]]:
    found: list[tuple[str, Kind]] = [(one.when.condition, "boolean")]
    if isinstance(one, FilterOptions):
        found.append((one.condition, "boolean"))
    if isinstance(one, RouteOptions):
        found.append((one.topic, "text"))
    return [(text, kind) for text, kind in found if text]
