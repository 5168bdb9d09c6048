"""A source that captures a folder of JSON lines files: the example of docs/add-a-source.md."""
