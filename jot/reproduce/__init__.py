"""make paper, the report, and what is missing on a machine."""
