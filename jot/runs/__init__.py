"""Runs of cells and notebooks: settings, the resumable harness, grids, and the frames that read them back."""
