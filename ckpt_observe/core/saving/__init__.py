"""From a state to a durable checkpoint: drafting, lineage, incremental saves, batches. Used by `Checkpointer`."""
