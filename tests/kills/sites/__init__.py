"""SIGKILL of sites that replicate with each other, again and again: nothing is lost or doubled, all sites are equal."""
