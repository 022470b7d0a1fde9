"""Metrics computed from spans and stored on disk: one total for all processes of a state directory.

`aggregation` turns a batch of spans into `points` (counters and histograms) and attempts, with label values limited by `labels`.
`operation_status` keeps what is known about each kind of operation of a task. `metric_store` adds points and attempts to a SQLite file.
`snapshot` reads that file and adds what runs at this moment; exporters write the result in their format.
"""
