"""The denoising loop and its parts: what every method shares."""
