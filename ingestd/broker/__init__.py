"""The embedded broker: one node that speaks the same protocol as a real cluster."""
