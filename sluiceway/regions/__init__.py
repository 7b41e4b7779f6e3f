"""Regions: topics of other clusters, published here as well. docs/regions.md says how.

config    [regions]
courier   what a message of there becomes here, and what its receipt means there; pure
feed      one topic of one region: connections to both sides
service   all feeds of a broker
"""
