"""What knows a Pulsar broker: its protocol, connections, and producers whose messages it stores once.

Knows nothing of sources and of events: records come as Arrow batches with the columns that :mod:`.producer`
names. Pulsar's own client for Python isn't used: it can't mark a message's key as encoded in base64, which
readers of KeyValue schemas need (``docs/design/publishing.md``).
"""
