"""Spans become numbers, kept on disk, one sum for all processes of a state directory.

`points` are the numbers; `progress` is how a task's operations stand; `tally` makes them of spans, with `labels` from bounded sets;
`store` keeps them, in the file that `database` opens; `snapshot` reads them with what runs at this moment, ready for any format; `turn`
says who may publish them. Knows `semconv`, `span` and `journal`; exporters know it.
"""
