"""Federated learning for clients that differ in their data, their models and their goals."""

__version__ = "0.1.0"
