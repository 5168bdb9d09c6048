"""The connector declaration: one capture, from its source to its mirrors."""

from airflow_cdc_provider.connector.declaration import Connector, ConnectorLike, load_connector, to_connector

__all__ = ["Connector", "ConnectorLike", "load_connector", "to_connector"]
