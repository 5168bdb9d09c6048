"""Link to a connector's assets in Airflow's UI, which show offset, lag and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.providers.common.compat.sdk import BaseOperatorLink, conf

from airflow_cdc_provider.connector.declaration import to_connector
from airflow_cdc_provider.exceptions import CdcError

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator, TaskInstanceKey


class ConnectorAssetsLink(BaseOperatorLink):
    """Links a task to the assets of its connector."""

    name = "CDC connector"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL of the asset list for the connector; empty if its declaration is invalid."""
        try:
            connector = to_connector(operator.connector)  # type: ignore[attr-defined]
        except CdcError:
            return ""
        base = conf.get("api", "base_url", fallback="") or ""
        return f"{base.rstrip('/')}/assets?name_pattern={quote(f'cdc/{connector.name}/', safe='')}"
