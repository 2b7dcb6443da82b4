"""What the server imports that processes of nodes are forked from: all kernels are there, no node compiles."""

from __future__ import annotations

from engine.kernels import compile_declared
from tests.node_group.kills import node

__all__ = ["node"]

compile_declared()
