"""Events of a connector to topics, each once and in order.

A publish run is a :class:`.publication.Publication` of an **origin** to a **target**, in tries:

=========================  ================================================================================
``origins/changes``        captured changes, batch by batch
``origins/merged_rows``    rows that merges changed: the difference of two snapshots of each mirror
``origins/replayed``       a range of captured changes again, to their topics or others
``targets/kafka``          one producer on the driver: records and position in one transaction
``targets/slices``         several producers, in Spark tasks; their number may change
``targets/pulsar``         sequence ids, which brokers deduplicate; the position is in the lake
``targets/text``           lines of a file, for inspection; without a position
=========================  ================================================================================

The stages choose both: ``stage`` (publish) by the declaration, ``replay`` by the request. ``batches`` plans
the records of each transaction and resumes at any position; all targets with a position use it.

**A new target** is a module in ``targets`` with a class that has the methods of
:class:`.publication.Target`. Its ``publish`` reads the stored position, passes it to ``origin.start``, and
runs ``origin.publish`` with a :class:`.batches.BatchPublisher`, whose ``sender`` sends records and stores the
position after them: atomically, or so that the next run recognizes the records. ``stage`` chooses it by its
options, which are in ``connector/publish``. A new origin is a class with the members of
:class:`.publication.Origin`.

The source's ``events`` build the records.
"""
