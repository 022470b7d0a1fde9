"""From the journal to the sinks, off the hot path: may be slow, down, or started again; in this process or in another.

`collector` moves records from pages to the spool; `assemble` makes spans of them; `delivery` brings them to one sink, with a cursor of its
own in an `outbox`; `custody` holds the journals of other processes; `leftovers` bounds what ended ones left; `drain` runs it all. Where
another process does that, `handover` stands in its place, and `companion` or `agent` is what it sees of the other; `readiness` is how that
one is.
"""
