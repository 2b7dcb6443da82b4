"""Calls of a client on a store of another process: values as bytes, messages in frames (docs/clients.md)."""
