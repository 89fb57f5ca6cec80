"""Generators of the pocket tasks: small synthetic namesakes of the public benchmarks, and real prose."""
