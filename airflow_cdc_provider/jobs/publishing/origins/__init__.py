"""What is published: each module has one :class:`~..publication.Origin`."""
