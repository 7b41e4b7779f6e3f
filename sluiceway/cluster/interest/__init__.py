"""Interest: which hubs have subscribers of which topics, by names and wildcards.

Pure: `book` is what one hub knows, `messages` what hubs tell each other, `compact` numbers in few bytes.
`docs/design/cluster.md` says how hubs agree.
"""
