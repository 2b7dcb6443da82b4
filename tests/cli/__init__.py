"""The command line, and the socket over which it talks to an open store."""
