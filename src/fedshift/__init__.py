"""fedshift: one model over many parties whose data look different."""
