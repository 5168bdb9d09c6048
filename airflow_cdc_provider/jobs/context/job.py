"""The job: what is to be done, and for which connector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.spec import JobSpec
from airflow_cdc_provider.logs import logger

log = logger("airflow_cdc_provider.jobs")


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Job:
    """What is to be done.

    Args:
        spec: The job's specification.
        connector: The declaration.
        stopping: Returns whether a clean stop was requested; long loops check it between steps.
    """

    spec: JobSpec
    connector: Connector
    stopping: Callable[[], bool] = _never
