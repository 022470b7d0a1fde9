"""Moves records from the journal to the exporters, off the hot path, in this process or in another one.

`page_collector` moves records from pages to the spool; `assemble` turns them into spans; `exporter_worker` brings them to one exporter,
with its own cursor in an `outbox`; `adoption` holds the journals of other processes; `disk_limit` bounds what ended processes left;
`delivery` runs all of this. If another process delivers, `handover` takes its place, `companion` or `daemon` represents the other process,
and `readiness` reports its health.
"""
