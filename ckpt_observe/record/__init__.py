"""The hot path: records tasks, operations and phases of the host program as they happen.

It depends only on names and on the OpenTelemetry API. The pages it writes to come from a function that it is given
(`recorder.Recorder.take`).
"""
