"""What is in deploy/ fits the broker: units, images, rules, dashboards."""
