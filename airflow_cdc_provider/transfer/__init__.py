"""Bringing commit-log segments from nodes to where Spark reads them.

A :class:`~airflow_cdc_provider.transfer.transfer.Transfer` takes segments from a *source* to a *target*. Both
lie in a *store*: a folder, a folder behind SSH, a prefix of an S3 bucket. What lies there is either whole
segments beside their idx files, as a node's ``cdc_raw`` has them and as capture reads them
(:mod:`~airflow_cdc_provider.transfer.whole`), or chunks with a manifest, for stores in which a file can be
put but not appended to or renamed (:mod:`~airflow_cdc_provider.transfer.chunks`)::

    cdc_raw ──────────────────────────────► landing area      CommitLogTransferOperator
    cdc_raw ──► chunks in a bucket ───────► landing area      cdc-shipper on the node, then the operator

This package needs nothing but Python's standard library (and boto3 for S3, which is imported when used): the
shipper runs it on database nodes.
"""
