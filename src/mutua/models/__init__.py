"""Models: the zoo, users' own, and how any of them splits into body and head."""

from mutua.models import mobile, plain, resnet, small, tables, texts  # noqa: F401  (they register themselves)
from mutua.models.architecture import Architecture
from mutua.models.registry import describe_model as describe
from mutua.models.registry import model_names as names
from mutua.models.registry import register_model as register
from mutua.models.splice import features, head_of, shared_names

__all__ = ["Architecture", "describe", "features", "head_of", "names", "register", "shared_names"]
