"""Sources: one folder per database, each an implementation of :mod:`airflow_cdc_provider.sources.base`."""
