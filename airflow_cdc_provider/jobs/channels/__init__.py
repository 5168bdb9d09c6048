"""What a job hears and tells beside its data: signals in, notifications and heartbeats out.

It knows ``jobs.topics``; a job's context opens the channels, and no stage is known here.
"""
