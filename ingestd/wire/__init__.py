"""Bytes on a socket: broker connections, version negotiation, requests and responses."""
