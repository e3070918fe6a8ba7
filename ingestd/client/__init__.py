"""The client: cluster metadata, the roles a broker can have, cluster administration."""
