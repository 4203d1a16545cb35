"""The tuning loop: assembler, simulator, cost model, devices, samplers, study and command line."""

__version__ = "0.1.0"
