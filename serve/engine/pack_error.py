"""Why bytes are no trajectory. No torch."""


class PackError(ValueError):
    """Bytes that are no trajectory, or not one that can be read here; the message says why."""
