"""Raydiance: image and video diffusion models served on a Ray cluster."""
