"""Logs under kill -9, power cuts, full and failing disks, and damage."""
