"""Statistics, published numbers, plots, notebook tools; the decoding path imports none of it."""
