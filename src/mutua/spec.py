"""The base of everything that users write in a recipe or give in Python."""

from pydantic import BaseModel, ConfigDict


class Spec(BaseModel):
    """Fields that cannot be changed or misspelt. Built when first used, so that `import mutua` stays quick."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
