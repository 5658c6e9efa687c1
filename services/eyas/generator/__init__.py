"""The generator: streams answers from model servers for the items that the dispatcher hands out."""
