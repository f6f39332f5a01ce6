"""Active contrastive sampling (ACS) as pure state: the algorithm, and one node at work."""
