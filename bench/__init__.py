"""Workloads side by side with what a user would pick instead: `python -m bench`, `make bench`, `bench/gpu.sh`."""
