"""Copies commit-log segments from nodes to where Spark reads them.

A :class:`~airflow_cdc_provider.transfer.transfer.Transfer` copies segments from a *source* to a *target*.
Both are in a *store*: a folder, a folder behind SSH, a prefix of an S3 bucket. A store has either whole
segments and their idx files, as in a node's ``cdc_raw`` and as capture reads them
(:mod:`~airflow_cdc_provider.transfer.whole`), or chunks with a manifest, for stores that can't append to or
rename files (:mod:`~airflow_cdc_provider.transfer.chunks`)::

    cdc_raw ──────────────────────────────► landing area      CommitLogTransferOperator
    cdc_raw ──► chunks in a bucket ───────► landing area      cdc-shipper on the node, then the operator

This package only needs Python's standard library (and boto3 for S3, which is imported on use), because the
shipper runs on database nodes.
"""
