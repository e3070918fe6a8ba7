"""Files to record batches: discovery, identity, rotation, framing."""
