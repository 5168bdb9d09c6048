"""Columns that events hide or cut: ``column.truncate``, ``column.mask`` and ``column.mask.hash`` of Debezium.

Forms: ``truncate:N`` keeps the first N characters; ``mask:N`` shows N asterisks; ``hash:ALGORITHM:SALT`` and
``hash-v2:ALGORITHM:SALT`` show the digest of salt and value in hexadecimal, at most as long as the column is.
The first hashes a text as Java serialises it, as Debezium's first version does, the second its UTF-8.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.text_digests import digests
from airflow_cdc_provider.exceptions import ConfigurationError

_FORM: Final = re.compile(r"(truncate|mask):(\d+)|(hash|hash-v2):([^:]+):(.+)", re.DOTALL)


def mask_of(form: str, path: str, *, is_text: bool, length: int) -> Callable[[pa.Array], pa.Array] | None:
    """Return what hides a column.

    Args:
        form: How.
        path: The column, ``keyspace.table.column``.
        is_text: Whether events show it as text.
        length: Characters that it holds, 0 for no limit.

    Returns:
        None where there is nothing to cut.

    Raises:
        ConfigurationError: There is no such form or algorithm, or it can't hide the column.
    """
    found = _FORM.fullmatch(form)
    if found is None:
        raise ConfigurationError(
            f"publish.vitess.masks has no form for {path}",
            expected="truncate:N, mask:N, hash:ALGORITHM:SALT or hash-v2:ALGORITHM:SALT",
            found=form.partition(":")[0],  # a salt is no text for a log
        )
    if found[1] == "truncate":
        return partial(_cut, int(found[2])) if is_text else None
    if not is_text:
        raise ConfigurationError(
            f"publish.vitess.masks can't hide {path}, which is no text",
            remedy="leave it out by publish.vitess.exclude_columns",
        )
    if found[1] == "mask":
        return partial(_hide, int(found[2]))
    algorithm = found[4].replace("-", "").lower()
    if algorithm not in hashlib.algorithms_available:
        raise ConfigurationError(f"publish.vitess.masks of {path}: no algorithm {found[4]}")
    return partial(digests, algorithm, found[5].encode(), as_java=found[3] == "hash", length=length)


def _cut(size: int, column: pa.Array) -> pa.Array:
    return pc.utf8_slice_codeunits(column, 0, size)


def _hide(size: int, column: pa.Array) -> pa.Array:
    return pc.if_else(column.is_valid(), "*" * size, pa.scalar(None, column.type))
