"""Topics to topics: reserved for the mirror routes."""
