"""Names only: every span, attribute, metric, label, unit, bucket and closed set, each with a sentence of meaning.

Code, metrics, dashboards, CLI and docs take their words from here; `docs/semconv.md` is generated from it. Imports nothing of ours.
"""
