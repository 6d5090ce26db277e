"""What methods share: one idea a file."""
