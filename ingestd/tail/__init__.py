"""Files to record batches: which files, in which order, from where; their lines; how these are framed."""
