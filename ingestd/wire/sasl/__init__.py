"""SASL: proves the client's account. One module for each mechanism; `authentication` runs them over a connection."""
