"""Parts of a change stream: its pipeline, its events, its backlog."""
