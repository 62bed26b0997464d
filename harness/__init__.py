"""The library behind `solbench`: measure, judge and bound kernels. docs/architecture.md has the map."""

__version__ = "0.1.0"
