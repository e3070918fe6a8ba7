"""Consumer groups: members that share the partitions of topics, and commit how far they are."""
