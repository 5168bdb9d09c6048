"""Notifications of a capture, in Debezium's format, independent of the database.

A :class:`~.notification.Notification` reports one event, such as the start of a snapshot. :mod:`.snapshots`
defines the notifications of snapshots; :class:`~.notifier.Notifier` sends each to all channels
(:mod:`.channels`) of the declaration. A failing channel can't stop a capture.
"""
