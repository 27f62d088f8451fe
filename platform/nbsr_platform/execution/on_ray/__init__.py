"""Ray: the session, workers, placement, and how a lost one is noticed."""
