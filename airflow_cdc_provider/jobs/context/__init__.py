"""The parts of a running job: its specification, lake, source, clients, and what it has done so far.

:class:`~.run.Run` has all of them. Only the functions of stages take it; any other function takes the parts
that it uses.
"""
