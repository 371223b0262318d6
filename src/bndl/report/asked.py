"""What the explorer's page may ask for: every number in its range, nothing more than what is listed here."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from bndl.edit import Edit

__all__ = ["Asked", "Changed", "Chosen", "Explained", "Filtered"]

_Index = Annotated[int, Field(ge=0, le=10**9)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Edited(_Strict):
    feature: _Index
    target: _Index | None = None
    factor: float = Field(ge=0, le=1e6, allow_inf_nan=False)
    note: str = Field(default="", max_length=500)


class Changed(_Strict):
    """Edits of the decision layer, in order; they come with every request, so that the server keeps none."""

    edits: tuple[_Edited, ...] = Field(default=(), max_length=200, strict=False)

    def made(self) -> tuple[Edit, ...]:
        """As the library has them."""
        return tuple(Edit(one.feature, one.target, float(one.factor), one.note) for one in self.edits)


class Chosen(_Strict):
    """One image: an example of the data by its number, or what was uploaded before by its key."""

    example: _Index | None = None
    upload: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]{1,40}$")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.example is None) == (self.upload is None):
            raise ValueError("give an example's number or an upload's key")
        return self


class Asked(Changed):
    """What does the model say of an image, and why not ``against``?"""

    image: Chosen
    against: _Index | None = None


class Explained(Changed):
    """LIME of an image."""

    image: Chosen
    perturbations: int = Field(default=300, ge=20, le=2000)


class Filtered(BaseModel):
    """Which examples to list; as it comes from an address, numbers are texts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    outcome: Literal["all", "right", "wrong", "sure-wrong", "unsure-right"] = "all"
    target: _Index | None = None
    decile: Annotated[int, Field(ge=0, le=99)] | None = None
    order: Literal["sure", "unsure", "number"] = "sure"
    start: _Index = 0
    count: int = Field(default=24, ge=1, le=96)
