"""What several notebooks share and no library has."""
