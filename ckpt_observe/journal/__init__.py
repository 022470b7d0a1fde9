"""What a process records, kept where its death cannot reach it.

`pages` hold operations in flight, in shared memory; the `spool` holds finished ones, on disk; `recovery` finishes what a dead process
left. A journal is a directory with both, a lock that dies with its owner and a lock for whoever delivers it.
"""
