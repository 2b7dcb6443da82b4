"""The command line, and the socket it talks to an open store through."""
