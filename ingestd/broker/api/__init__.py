"""Request handlers: one file per API, with its versions at the top. The table of all is `handlers`."""
