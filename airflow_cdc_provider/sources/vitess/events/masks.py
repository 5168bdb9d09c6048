"""Masks columns of events: ``column.truncate``, ``column.mask`` and ``column.mask.hash`` of Debezium.

Formats: ``truncate:N`` keeps the first N characters, of binary columns bytes; ``mask:N`` returns N asterisks,
also for NULL; ``hash:ALGORITHM:SALT`` and ``hash-v2:ALGORITHM:SALT`` return the digest of salt and value in
hexadecimal, truncated to the column's length. ``hash`` digests Java's serialisation of the text, as
Debezium's first version does; ``hash-v2`` digests UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.text_digests import digests
from airflow_cdc_provider.connector.publish.vitess import digest_algorithm
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.connect_metadata import CONNECT_NAME

_MASKED: Final = {"masked": "true"}
_FORMAT: Final = re.compile(r"(truncate|mask):(\d+)|(hash|hash-v2):([^:]+):(.+)", re.DOTALL)


class Mask(NamedTuple):
    """A mask of a column.

    Args:
        apply: Masks its values.
        parameters: What the schema of its field says about it, as Debezium's.
    """

    apply: Callable[[pa.Array], pa.Array]
    parameters: Mapping[str, str]


def mask_of(form: str, path: str, field: pa.Field, length: int) -> Mask | None:
    """Return the mask of a column.

    Args:
        form: The mask, in one of the formats above.
        path: The column, ``keyspace.table.column``.
        field: Its field in events.
        length: Maximum number of characters, 0 for no limit.

    Returns:
        The mask; None if there is nothing to truncate.

    Raises:
        ConfigurationError: The format or algorithm is unknown, or can't mask the column.
    """
    found = _FORMAT.fullmatch(form)
    if found is None:
        raise ConfigurationError(
            f"invalid value for publish.vitess.masks of {path}",
            expected="truncate:N, mask:N, hash:ALGORITHM:SALT or hash-v2:ALGORITHM:SALT",
            found=form.partition(":")[0],  # never log the salt
        )
    is_text = pa.types.is_string(field.type)
    if found[1] == "truncate":
        is_plain = CONNECT_NAME not in (field.metadata or {})  # no Decimal
        if not is_text and not (pa.types.is_binary(field.type) and is_plain):
            return None
        cut = pc.utf8_slice_codeunits if is_text else pc.binary_slice
        return Mask(partial(cut, start=0, stop=int(found[2])), {"truncateLength": found[2]})
    if not is_text:
        raise ConfigurationError(
            f"publish.vitess.masks can't mask {path}, which is no text",
            remedy="exclude it with publish.vitess.exclude_columns",
        )
    if found[1] == "mask":
        return Mask(partial(_mask, int(found[2])), _MASKED)
    algorithm = digest_algorithm(found[4])
    return Mask(
        partial(digests, algorithm, found[5].encode(), as_java=found[3] == "hash", length=length), _MASKED
    )


def _mask(size: int, column: pa.Array) -> pa.Array:
    return pa.repeat("*" * size, len(column))
