"""Processes that run a store, forked from a server that has everything loaded: a new interpreter would take seconds."""

from __future__ import annotations

import multiprocessing

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tidemark.recovery.crash_harness.preloaded"])
