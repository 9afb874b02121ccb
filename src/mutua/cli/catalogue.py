"""`mutua methods` and `mutua models`: what a recipe can name."""

from typing import Annotated

import typer


def methods_command(
    table: Annotated[
        bool, typer.Option("--table", help="FedH2L's Table I: what distinguishes them, by a small run of each.")
    ] = False,
) -> None:
    """List the methods: what they send and what they can do."""
    from mutua.reports import listings

    if table:
        listings.show_systems()
    else:
        listings.show_methods()


def models_command() -> None:
    """List the models."""
    from mutua.reports import listings

    listings.show_models()
