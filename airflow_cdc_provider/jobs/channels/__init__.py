"""Messages of a job other than data: it receives signals and sends notifications and heartbeats.

It imports ``jobs.topics``, but no stage; a run's clients open the channels.
"""
