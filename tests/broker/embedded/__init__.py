"""The embedded broker as a child process, for tests of any directory."""
