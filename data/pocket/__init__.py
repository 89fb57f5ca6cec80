"""Generators of the pocket tasks (small synthetic namesakes of the public benchmarks, and real prose), training of
the embedded pair, and what records of it are made with: true text that is followed, features of texts."""
