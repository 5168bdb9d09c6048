"""Where events go: each module has one :class:`~..publication.Target`."""
