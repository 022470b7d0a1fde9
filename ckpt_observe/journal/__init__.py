"""Stores what a process records so that it survives the death of that process.

`pages` hold running operations in shared memory, the `spool` holds finished ones on disk, and `recovery` finishes the operations of a dead
process. A journal is a directory with the spool, a lock that its owner holds until it dies, and a lock for the process that delivers it.
"""
