"""The daemon: supervisor, workers, shared memory, positions, and what a source is."""
