"""Logs: records that stay, for any number of readers. Each runs as it stands, for instance

python -m examples.logs.groups
"""
