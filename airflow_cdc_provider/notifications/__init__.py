"""Notifications: what a capture tells whoever waits for it, in Debezium's form; knows no database.

A :class:`~.notification.Notification` says one thing, such as that a snapshot has begun. The sentences that
there are stand in :mod:`.snapshots`; :class:`~.notifier.Notifier` gives each to all channels
(:mod:`.channels`) that the declaration names. What a channel does with it can't stop a capture.
"""
