"""Active contrastive sampling (ACS) as pure state: the algorithm, one node at work, which refusals become negatives."""
