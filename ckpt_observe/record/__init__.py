"""The hot path: tasks, operations and phases of the host program, written down as they happen.

Knows names and the OpenTelemetry API; what keeps the lines is given to it (`recorder.Recorder.take`).
"""
