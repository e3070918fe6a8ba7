"""Request handlers: one file per API, with its versions on top; the table of them all is `handlers`."""
