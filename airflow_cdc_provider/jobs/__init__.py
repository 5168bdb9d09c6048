"""The applications that spark-submit runs: a job spec selects the stage, a result file holds its outcome.

This folder has the application, its specification and result (``spec``), the parts of a run (``context``),
and the stages that use several of the others. Each folder is one capability and imports only from folders
below it or to its right::

    application
    stream
    sync
    signals, offsets, maintain              requests from outside, a connector's position, maintenance
    comparing, reporting                    mirrors against their source and topics; results and status
    publishing, offline, snapshots          events to Kafka; recordings; tables read in full
    capturing, merging, events              into the changes table; from it into mirrors; from it into events
    resuming                                the state that is stored with the offset
    context                                 job, lake, clients and report of a run
    metrics, channels, spark, topics, spec  what these use

The import-linter contract in ``pyproject.toml`` defines the exact order.
"""
