"""What spark-submit runs: an application per stage, told by a job spec, answered by a result file.

Here stand the application, its order and result (``spec``), what its stages share (``context``), and the
stages that use several of the others. Each folder is one capability, and imports only what stands below it
or to the right::

    application
    stream
    sync
    signals, offsets, maintain              what is asked from outside, where a connector stands, upkeep
    comparing, reporting                    mirrors against their source and topics; results and status
    publishing, offline, snapshots          events to Kafka; recordings; tables read in full
    capturing, merging, events              into the changes table; from it into mirrors; from it into events
    resuming                                what stands with the offset
    context
    metrics, channels, spark, topics, spec  what a context is made of

The contract for import-linter in ``pyproject.toml`` is the exact order.
"""
