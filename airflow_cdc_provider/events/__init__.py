"""Events: decoded changes as the keys, values, headers and topics that Kafka readers of CDC expect."""
