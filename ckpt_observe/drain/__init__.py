"""From the journal to the sinks, off the hot path: may be slow, down, or started again.

`assemble` makes spans of records; `delivery` brings them to one sink, with a cursor of its own; `drain` runs it all.
"""
