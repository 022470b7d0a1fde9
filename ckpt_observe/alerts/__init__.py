"""Alerts as data: one table, from which the rule file of Prometheus and the configuration of Alertmanager are made for a site.

`plan` is what the site is like; `promql` are the pieces of expressions, by names of `semconv`; `saves`, `reads`, `growth` and `bridge` are
the alerts; `rules` and `routing` make of them what the files say, `files` the files. Knows `semconv` and `errors` only.

Checkpoints are minutes or days apart, so a rate over five minutes is mostly nothing by nothing. These alerts ask for ages, rows of failures
and counts over many intervals; rates only where the cadence carries them (`saves.budget_burn`).
"""
