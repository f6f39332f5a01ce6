"""Sampling, training, the loop of both, evaluation: `aeenc sample`, `train`, `loop`, `evaluate`, `compare`, `fuse` …"""
