"""Pieces of PTX that kernels share: shared-memory tiles, copies, matrix fragments, decoding, stores,
interleaving."""
