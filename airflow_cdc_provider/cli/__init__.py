"""The command group ``airflow cdc``."""
