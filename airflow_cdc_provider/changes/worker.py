"""Arrow functions in Spark's Python workers, without the work that a worker repeats for each task."""

from __future__ import annotations

import gc
import re
import secrets
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from zipimport import zipimporter

import pyarrow as pa

from airflow_cdc_provider import masking
from airflow_cdc_provider.changes.known_failures import known_failure
from airflow_cdc_provider.exceptions import CdcError, error_of_code

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

ArrowWork = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_frozen = False
_TOKEN: Final = secrets.token_hex(16)
"""Marks errors of this driver's workers in Spark's text, which also quotes sources: they can't know it."""


def map_in_arrow(frame: DataFrame, work: ArrowWork, schema: StructType | str) -> DataFrame:
    """Run ``DataFrame.mapInArrow`` with less overhead between tasks.

    Args:
        frame: The input of ``work``.
        work: Picklable; from batches of ``frame`` to batches of ``schema``, once per task.
        schema: Of the result, as Spark's type or DDL.
    """
    names = frame.columns
    if any("." in name or "`" in name for name in names):  # PySpark looks columns up by unquoted names
        frame = frame.toDF(*(f"c{number}" for number in range(len(names))))
    return frame.mapInArrow(_Task(work, names, _TOKEN), schema)


def error_of_worker(text: str) -> CdcError | None:
    """Find the error of this package that a worker of this driver raised, in Spark's text."""
    found = re.search(rf"\[CDC-([A-Z-]+) {_TOKEN}\] ([^\n]*)", text)
    return error_of_code(found[1], found[2]) if found else None


class WorkerError(Exception):
    """An error of this package in a worker, with the driver's token in its text."""


@dataclass(frozen=True)
class _Task:
    work: ArrowWork
    names: list[str]
    token: str
    secrets: masking.Known = field(default_factory=masking.known, repr=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _freeze_once()
        drop_zip_importers()
        masking.restore(self.secrets)
        try:
            yield from self.work(batch.rename_columns(self.names) for batch in batches)
        except Exception as error:  # its text is in the logs of Spark's JVMs
            text = "".join(traceback.format_exception(error))
            shown = error if masking.masked(text) == text else None
            if isinstance(error, CdcError):
                text = str(error).removeprefix(f"[CDC-{error.code}] ")
                raise WorkerError(f"[CDC-{error.code} {self.token}] {text}") from shown
            if shown is not None:
                raise
            raw = f"{type(error).__name__}: {error}"
            known, line = known_failure([raw])
            if known:  # decided here: the driver gets a masked text
                found = known.as_error(line)
                text = str(found).removeprefix(f"[CDC-{found.code}] ")
                raise WorkerError(f"[CDC-{found.code} {self.token}] {text}") from None
            raise RuntimeError(masking.masked(raw)) from None


def _freeze_once() -> None:
    """Exclude the imported modules from garbage collection, once per worker process.

    The worker collects garbage between tasks; with pyarrow and numba loaded that costs 13-20 ms each time.
    """
    global _frozen  # noqa: PLW0603  # one flag per process is the point
    if not _frozen:
        gc.collect()
        gc.freeze()
        _frozen = True


def drop_zip_importers() -> None:
    """Drop the importers of zip files; the next import re-creates one from a cached directory.

    The worker invalidates importers before each task. For pyspark.zip with 1,500 entries, Python up to 3.12
    reads the whole directory then, which costs some 20 ms.
    """
    archives = [path for path, one in sys.path_importer_cache.items() if isinstance(one, zipimporter)]
    for path in archives:
        del sys.path_importer_cache[path]
