"""Validation of transforms against the shape of a source's values, when the declaration is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from airflow_cdc_provider.events.transforms.expression import parse_expression
from airflow_cdc_provider.events.transforms.expression_tree import Kind
from airflow_cdc_provider.events.transforms.options import FilterOptions, RouteOptions
from airflow_cdc_provider.exceptions import ConfigurationError

Shape = Literal["text", "documents", "cells", "avro", "rows"]
"""Shape of values.

``text``       text with the whole event
``documents``  envelopes whose ``before`` and ``after`` are JSON text
``cells``      Cassandra's envelopes, whose rows are structs of cells
``avro``       structs with explicit Avro schemas
``rows``       structs
"""


def validate_transforms(transforms: Sequence[Any], shape: Shape) -> None:
    """Reject transforms that access fields of values without fields.

    Args:
        transforms: Options of the transforms.
        shape: Shape of the values.

    Raises:
        ConfigurationError: Names the first one.
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
                f"option {place} changes fields, but values have no fields",
                found=f"type {one.type}",
                expected="a transform of topics, headers or keys, or another publish.envelope",
            )
        if shape == "documents" and one.type in ("unwrap", "partition"):
            raise ConfigurationError(
                f"option {place} accesses fields of documents, which are JSON text",
                found=f"type {one.type}",
                remedy="set publish.unwrap.enabled, which comes before publish.transforms",
            )
        if shape == "cells" and one.type in ("unwrap", "partition"):
            raise ConfigurationError(
                f"option {place} requires envelopes with rows, but Cassandra's have cells",
                found=f"type {one.type}",
                remedy="extract the row with type extract, field after; or use publish.envelope: datastax",
            )
        for text, kind in _expressions(one):
            for reference in parse_expression(text, kind).references():
                if reference.root != "value" or not reference.path:
                    continue
                looks_into = reference.path[0] in ("before", "after") and len(reference.path) > 1
                if shape == "text" or (shape == "documents" and looks_into):
                    raise ConfigurationError(
                        f"an expression of {place} accesses fields of text at {reference.where}",
                        remedy="set publish.unwrap.enabled, which converts documents to fields",
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
"""Types with option target."""
_OF_VALUES: Final = ("header_to_value", "value_to_key", "partition", "unwrap")
"""Types that read or change fields of values."""


def _expressions(one: Any) -> list[tuple[str, Kind]]:
    found: list[tuple[str, Kind]] = [(one.when.condition, "boolean")]
    if isinstance(one, FilterOptions):
        found.append((one.condition, "boolean"))
    if isinstance(one, RouteOptions):
        found.append((one.topic, "text"))
    return [(text, kind) for text, kind in found if text]
