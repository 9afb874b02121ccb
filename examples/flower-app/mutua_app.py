"""What Flower runs: both parts are in mutua, which must be installed on the server and at the sites."""

from mutua.deploy.flower_app import client as client
from mutua.deploy.flower_app import server as server
