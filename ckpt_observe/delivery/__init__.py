"""Moves records from the journal to the exporters, off the hot path, in this process or in another one.

`page_collector` moves records from pages to the spool; `assemble` builds spans from them; `exporter_worker` sends them to one exporter,
which has its own cursor in an `outbox`; `set_aside` keeps spans that a server fails on. `adoption` takes over the journals of other
processes, which wait in `turns`; `disk_limit` bounds what ended processes leave; `delivery` runs all of this. If another process delivers,
`handover` takes the place of `delivery`, and `companion` or `daemon` represents the other process.
"""
