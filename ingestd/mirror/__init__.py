"""Topics of one cluster into another: which topics, how they are named there, how batches get there, from where on."""
