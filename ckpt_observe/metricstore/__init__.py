"""Spans become numbers, kept on disk, one sum for all processes of a state directory.

`points` are the numbers; `progress` is how a task's operations stand; `tally` makes them of spans; `store` keeps them; `snapshot` reads
them with what runs at this moment, ready for any format. Knows `semconv`, `span` and `journal`; sinks know it.
"""
