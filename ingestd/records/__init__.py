"""The record batch: encode, decode, patch, compress."""
