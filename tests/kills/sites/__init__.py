"""SIGKILL of sites that replicate with each other, again and again: nothing lost, nothing doubled, all alike."""
