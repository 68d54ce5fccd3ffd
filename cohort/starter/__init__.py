"""The starter model: small, made here in about half a minute, right some of the time."""
