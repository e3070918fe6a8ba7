"""The log cleaner: compaction of logs, in a child process."""
