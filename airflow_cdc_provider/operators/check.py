"""Operator that verifies the source's prerequisites, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.connector.declaration import ConnectorLike, to_connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.hooks._of_connector import check_connector, hook_for
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.operators._on_connector import ConnectorOperator
from airflow_cdc_provider.tasks.run_folder import sweep
from airflow_cdc_provider.tasks.work_folder import configured_work_folder

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

_log = logger("airflow_cdc_provider.operators")


class CdcCheckOperator(ConnectorOperator):
    """Verifies a connector's source: connectivity, permissions, CDC enabled, retention.

    Warnings are logged; errors fail the task without retries, all in one message. XCom: ``ok``, ``note``,
    ``warning``, ``error``, each a list of messages.

    Args:
        connector: The connector, its declaration as a mapping, or the path of its YAML file (templated).
        source_conn_id: Connection of the source instead of the declared one (templated).
    """

    template_fields: Sequence[str] = ("connector", "source_conn_id")

    def __init__(self, *, connector: ConnectorLike, source_conn_id: str | None = None, **kwargs: Any) -> None:
        super().__init__(connector=connector, **kwargs)
        self.source_conn_id = source_conn_id

    def perform(self, context: Context) -> dict[str, list[str]]:
        """Run the checks.

        Raises:
            ConfigurationError: A prerequisite is missing; the message names it and the remedy.
        """
        sweep(configured_work_folder())
        connector = to_connector(self.connector)
        source = hook_for(connector, self.source_conn_id).source(connector)
        try:
            findings = check_connector(connector, source)
        finally:
            source.close()
        seen: dict[str, list[str]] = {"ok": [], "note": [], "warning": [], "error": []}
        for finding in findings:
            text = f"{finding.subject}: {finding.message}"
            seen[finding.level].append(f"{text}. {finding.remedy}" if finding.remedy else text)
        for text in (*seen["ok"], *seen["note"]):
            _log.info("%s", text)
        for text in seen["warning"]:
            _log.warning("%s", text)
        if seen["error"]:
            raise ConfigurationError(
                f"connector {connector.name} can't capture: {'; '.join(seen['error'])}",
            )
        return seen
