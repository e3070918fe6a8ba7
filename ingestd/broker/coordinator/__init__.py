"""The runtime of coordinators: which partition has what, the records that they write, and the way into the log."""
