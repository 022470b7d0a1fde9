"""Mechanisms of several packages: forks, locks, files, SQLite, HTTP, YAML, logs, errno, secrets, plug-ins. Imports only `errors`."""
