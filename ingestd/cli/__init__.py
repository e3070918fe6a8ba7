"""The `ingestd` command. Thin: each verb calls a function that a Python user could call as well.

    main.py         the entry: runs a verb, turns errors into one line
    app.py          the verbs and their options; topic_verbs.py and group_verbs.py have those of two groups
    configured.py   a configuration file with all kinds of routes; the cluster that a tool talks to
    properties.py   `-X NAME=VALUE`: librdkafka's names for the settings of a tool's client
    reaching.py     says on standard error which broker is not reached, and why
    check.py        what of a configuration can be known without running it
    live_table.py   the live table of `ingestd run`; standard_error.py prints above it what children write
    rendering.py    how `ingestd consume` writes records

Exit codes are listed in `main`.
"""
