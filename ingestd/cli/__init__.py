"""The `ingestd` command. Thin: each verb calls a function that a Python user could call as well."""
