"""From a stored checkpoint back to a state: reading, lazy keys, references, verification. Used by `Checkpointer`."""
