"""Base of the operators on a connector that don't start Spark."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_cdc_provider.connector.declaration import ConnectorLike
from airflow_cdc_provider.exceptions import CdcError
from airflow_cdc_provider.links.connector import ConnectorAssetsLink
from airflow_cdc_provider.tasks.failures import for_airflow
from airflow_cdc_provider.tasks.parameters import TemplatedTask

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class ConnectorOperator(TemplatedTask, BaseOperator):
    """Links the task to the connector's assets, and maps errors to Airflow's."""

    template_fields: Sequence[str] = ("connector",)
    template_fields_renderers: ClassVar[dict[str, str]] = {"connector": "json"}
    operator_extra_links = (ConnectorAssetsLink(),)
    ui_color = "#e6f1f2"

    def __init__(self, *, connector: ConnectorLike, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.connector = connector

    def execute(self, context: Context) -> Any:
        """Do the task's work.

        Raises:
            AirflowFailException: A configuration change is required.
            CdcError: A retry may help.
        """
        try:
            return self.perform(context)
        except CdcError as error:
            raise for_airflow(error) from None

    @abstractmethod
    def perform(self, context: Context) -> Any:
        """Do the work; called after templates are rendered."""
