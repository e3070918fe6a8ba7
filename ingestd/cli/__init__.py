"""The `ingestd` command: thin verbs over functions that a Python user could call."""
