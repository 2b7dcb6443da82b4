"""What two sites say to each other: frames, handshake and sessions, none of which does I/O."""
