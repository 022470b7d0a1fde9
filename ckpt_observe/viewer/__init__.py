"""The viewer: traces, checkpoints and running operations of a state directory as pages in the browser, on loopback."""
