"""The maker of the pages in `docs/methods/`."""
