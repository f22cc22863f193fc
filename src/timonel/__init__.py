"""Timonel."""
