"""Access to Pulsar: its protocol, connections, and producers with deduplicated messages.

Independent of sources and events: records are Arrow batches with the columns documented in :mod:`.producer`.
Pulsar's Python client isn't used: it can't mark a message's key as base64-encoded, which readers of KeyValue
schemas need (``docs/design/publishing.md``).
"""
