"""The version, in one place that the build back end can read without importing torch."""

__version__ = "0.1.0"
