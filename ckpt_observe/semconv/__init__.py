"""The names that spans and metrics use: spans, attributes, metrics, labels, units, buckets and closed sets, each with its meaning.

Code, dashboards, alerts, CLI and docs take their names from here; `docs/semconv.md` is generated from it. Imports no other package of ours.
"""
