"""`mutua methods` and `mutua models`: what a recipe can name."""


def methods_command() -> None:
    """List the methods: what they send and what they can do."""
    from mutua.reports import listings

    listings.show_methods()


def models_command() -> None:
    """List the models."""
    from mutua.reports import listings

    listings.show_models()
