"""How a checkpoint is laid out as bytes: header line and payload, digests, and the names of files."""
