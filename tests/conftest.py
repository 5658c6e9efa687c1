"""What holds for all tests."""

from hypothesis import settings

# A deadline measures the machine and what else runs on it, not the code.
settings.register_profile("eyas", deadline=None)
settings.load_profile("eyas")
