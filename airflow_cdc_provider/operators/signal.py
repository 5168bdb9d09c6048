r"""Operator that sends a signal to a connector.

Example::

    again = CdcSignalOperator(
        task_id="again",
        connector="/opt/cdc/shop.yaml",
        signal="execute-snapshot",
        data={"data-collections": ["shop\\.orders"], "type": "incremental"},
    )
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_cdc_provider.connector.declaration import ConnectorLike, to_connector
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.operators._on_connector import ConnectorOperator
from airflow_cdc_provider.tasks.parameters import to_mapping, to_tables
from airflow_cdc_provider.tasks.signals import send_signal

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

_log = logger("airflow_cdc_provider.operators")


class CdcSignalOperator(ConnectorOperator):
    """Sends a signal to a connector, for its running stream or its next sync.

    The task ends when the signal is stored in the work folder; the connector's next round reads it. ``airflow
    cdc status`` reports its outcome. A retry sends the same signal, which is executed once.

    XCom: the signal's id.

    Args:
        connector: The connector, its declaration as a mapping, or the path of its YAML file (templated).
        signal: ``execute-snapshot``, ``stop-snapshot``, ``pause-snapshot``, ``resume-snapshot`` or ``log``
            (templated).
        data: The signal's data, a mapping or its JSON (templated).
        tables: Tables for ``data-collections`` instead of those in ``data``: a list, or comma-separated text
            or a JSON list (templated).
        signal_id: The signal's id (templated); default: an id of this task in this run.
        work_folder: The work folder of the connector's operators (templated); default ``[cdc] work_folder``.
    """

    template_fields: Sequence[str] = ("connector", "signal", "data", "tables", "signal_id", "work_folder")
    template_fields_renderers: ClassVar[dict[str, str]] = {"connector": "json", "data": "json"}

    def __init__(
        self,
        *,
        connector: ConnectorLike,
        signal: str,
        data: Mapping[str, Any] | str | None = None,
        tables: Sequence[str] | str = (),
        signal_id: str | None = None,
        work_folder: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(connector=connector, **kwargs)
        self.signal = signal
        self.data = data
        self.tables = tables
        self.signal_id = signal_id
        self.work_folder = work_folder

    def perform(self, context: Context) -> str:
        """Send the signal.

        Raises:
            ConfigurationError: The signal is invalid, or the work folder isn't writable.
        """
        run, instance = context["dag_run"], context["ti"]
        own = f"{run.dag_id}.{instance.task_id}.{instance.map_index}.{run.run_id}"
        connector = to_connector(self.connector)
        sent = send_signal(
            connector,
            self.work_folder,
            self.signal,
            to_mapping("data", self.data) or {},
            tables=to_tables(self.tables),
            identity=self.signal_id or own,
        )
        _log.info("Signal %s for %s: %s", sent, connector.name, self.signal)
        return sent
