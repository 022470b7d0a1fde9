"""Alerts as data, and the files made from them: rules for Prometheus, a configuration for Alertmanager, and the runbook.

`site` describes the site that the alerts are made for. `alert` defines an alert and the parts of its PromQL expression. The alerts are in
`saves`, `storage` and `observability`. `rule_files` builds the contents of the files.

Checkpoints are minutes or days apart, so a rate over five minutes is mostly 0/0. These alerts use ages, consecutive failures, and counts
over many save intervals. Rates are used only if saves are frequent enough (`saves.budget_burn`).
"""
