"""The live page: run folders in a browser, while runs are at work and afterwards."""
