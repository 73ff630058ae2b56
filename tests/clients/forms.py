"""What clients are asked for: pydantic models of every kind that their schemas know, and a question for each."""

import datetime
import enum
import uuid
from typing import Annotated, Literal, Optional, Union

from pydantic import AnyUrl, BaseModel, ConfigDict, Field, UrlConstraints


class Address(BaseModel):
    street: str = Field(max_length=40)
    city: str = Field(max_length=20)
    zip_code: Optional[str] = Field(None, pattern=r"^\d{5}$", description="five digits")


class Person(BaseModel):
    """A person and where they live: nested models, defaults, optionals."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=30, examples=["Ada"])
    age: int = Field(ge=0, le=150)
    email: Optional[str] = None
    address: Address
    others: list[Address] = Field(default_factory=list, max_length=2)


class Level(str, enum.Enum):
    low = "low"
    high = "high"


class Ticket(BaseModel):
    """Enums, literals, dates, bounds, lists of values."""

    title: str = Field(min_length=3, max_length=40)
    level: Level
    kind: Literal["bug", "wish"] = "bug"
    tags: list[Literal["ui", "api", "docs"]] = Field(max_length=3)
    due: Optional[datetime.date] = None
    hours: float = Field(ge=0, le=100)
    done: bool = False


class Circle(BaseModel):
    type: Literal["circle"]
    radius: int = Field(gt=0, lt=100)


class Square(BaseModel):
    type: Literal["square"]
    side: int = Field(gt=0, lt=100)
    label: Union[str, int, None] = Field(None)


class Drawing(BaseModel):
    """Unions, with a discriminator and without."""

    shapes: list[Annotated[Union[Circle, Square], Field(discriminator="type")]] = Field(min_length=1, max_length=3)
    owner: Union[int, Literal["nobody"]]


class Node(BaseModel):
    """A model of itself."""

    name: str = Field(max_length=12)
    children: list["Node"] = Field(default_factory=list, max_length=2)


class Event(BaseModel):
    """Formats, patterns, tuples."""

    id: uuid.UUID
    at: datetime.datetime
    code: str = Field(pattern=r"^[A-Z]{3}-\d{2,4}$")
    place: tuple[int, int]
    link: Annotated[AnyUrl, UrlConstraints(max_length=2083)]  # as HttpUrl has it
    price: float = Field(ge=0, le=1000)


FORMS = {
    Person: "Invent a person who lives in Oslo.",
    Ticket: "Write a ticket: the page of settings is empty.",
    Drawing: "Draw a small circle and a square.",
    Node: "A tree of folders, two levels deep.",
    Event: "An event: a concert in Paris on 3 May 2026, 20 euros.",
}
