"""Configurations by Kafka's names: what there is, what a value must be, what is set, and how it is changed."""
