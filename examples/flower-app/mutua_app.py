"""What Flower runs: both parts are in mutua, which must be installed on the server and at the sites."""

from mutua.deploy.flower_app import client, server

__all__ = ["client", "server"]  # Flower looks for them here, without an import
