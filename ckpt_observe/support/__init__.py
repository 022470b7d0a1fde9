"""Mechanisms that several packages share: forks, locks, files, SQLite, HTTP, YAML, logs, errno, entry points. Imports only `errors`."""
