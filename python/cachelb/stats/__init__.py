"""Statistics of events, of polls and of the admission queue."""
