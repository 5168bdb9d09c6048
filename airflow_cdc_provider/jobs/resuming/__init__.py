"""The state stored with the offset, with which the next job resumes: progress, requests, and identity.

It imports the parts of a run; every stage that captures, reads tables or merges imports it.
"""
