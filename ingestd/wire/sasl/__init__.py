"""SASL: who this client is. One module for each mechanism; `authentication` speaks them over a connection."""
