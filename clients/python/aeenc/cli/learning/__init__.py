"""Sampling, training, the loop of both, and evaluation: `aeenc sample`, `train`, `loop`, `evaluate`, `compare` …"""
