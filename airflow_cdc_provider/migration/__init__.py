"""Migration from other connectors: their files go in, a declaration and offsets come out.

The files are properties and Kafka Connect JSON of Debezium's, DataStax's and ScyllaDB's connectors, and their
stored offsets. Only the command line imports this package.
"""
