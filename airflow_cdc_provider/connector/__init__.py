"""The connector declaration: one capture, from its source to its mirrors."""

from airflow_cdc_provider.connector.declaration import Connector, load_connector

__all__ = ["Connector", "load_connector"]
