"""Topics that hold Debezium's events already, of any of its connectors, as a source of mirrors."""
