"""Calls of a client on a store in another process: values as bytes, messages in frames (docs/clients.md)."""
