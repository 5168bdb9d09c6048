"""Masks columns of events: ``column.truncate``, ``column.mask`` and ``column.mask.hash`` of Debezium.

Formats: ``truncate:N`` keeps the first N characters; ``mask:N`` returns N asterisks; ``hash:ALGORITHM:SALT``
and ``hash-v2:ALGORITHM:SALT`` return the digest of salt and value in hexadecimal, truncated to the column's
length. ``hash`` digests Java's serialisation of the text, as Debezium's first version does; ``hash-v2``
digests UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.text_digests import digests
from airflow_cdc_provider.connector.publish.vitess import digest_algorithm
from airflow_cdc_provider.exceptions import ConfigurationError

_FORMAT: Final = re.compile(r"(truncate|mask):(\d+)|(hash|hash-v2):([^:]+):(.+)", re.DOTALL)


def mask_of(form: str, path: str, *, is_text: bool, length: int) -> Callable[[pa.Array], pa.Array] | None:
    """Return the function that masks a column.

    Args:
        form: The mask, in one of the formats above.
        path: The column, ``keyspace.table.column``.
        is_text: Whether its event type is text.
        length: Maximum number of characters, 0 for no limit.

    Returns:
        The function; None if there is nothing to truncate.

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
    if found[1] == "truncate":
        return partial(_truncate, int(found[2])) if is_text else None
    if not is_text:
        raise ConfigurationError(
            f"publish.vitess.masks can't mask {path}, which is no text",
            remedy="exclude it with publish.vitess.exclude_columns",
        )
    if found[1] == "mask":
        return partial(_mask, int(found[2]))
    return partial(
        digests, digest_algorithm(found[4]), found[5].encode(), as_java=found[3] == "hash", length=length
    )


def _truncate(size: int, column: pa.Array) -> pa.Array:
    return pc.utf8_slice_codeunits(column, 0, size)


def _mask(size: int, column: pa.Array) -> pa.Array:
    return pc.if_else(column.is_valid(), "*" * size, pa.scalar(None, column.type))
