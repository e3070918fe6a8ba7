"""Groups: what the group coordinator decides, without sockets, files and clocks."""
