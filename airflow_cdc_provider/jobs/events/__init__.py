"""Changes and rows of snapshots as events: what every source does the same, and a module per source."""
