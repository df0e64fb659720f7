"""Types of options: their text on the command line and their values in a recipe.

A type parses text (`from_text`) and checks values that a recipe file already has types for
(`checked`). Both return the same value, or report the expected type.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from caldera.base.registry import nearest
from caldera.errors import ConfigError


class OptionType(ABC):
    """Base class of option types."""

    @property
    @abstractmethod
    def placeholder(self) -> str:
        """Placeholder of a value in help texts."""

    @property
    @abstractmethod
    def expected(self) -> str:
        """Expected value, for error messages."""

    def read(self, text: str) -> Any:
        """Parse a text; raise ValueError if it is invalid."""
        return text

    @abstractmethod
    def accept(self, value: Any) -> Any:
        """Return the value as this kind holds it; ValueError if it is none."""

    def hint(self, value: Any) -> str:
        """Return a hint for a rejected value."""
        return ""

    def from_text(self, text: str, where: str) -> Any:
        """Return the value of a flag."""
        try:
            return self.accept(self.read(text))
        except ValueError:
            raise self._refused(text, where) from None

    def optional(self, text: str | None, where: str) -> Any:
        """Return the value of a flag; None if it was not given."""
        return None if text is None else self.from_text(text, where)

    def checked(self, value: Any, where: str) -> Any:
        """Return the value of a key in a recipe."""
        try:
            return self.accept(value)
        except ValueError:
            raise self._refused(value, where) from None

    def _refused(self, value: Any, where: str) -> ConfigError:
        return ConfigError.build(
            where, expected=self.expected, got=repr(value), hint=self.hint(value)
        )


@dataclass(frozen=True)
class CountOption(OptionType):
    """A whole number of at least `least`.

    >>> CountOption(1).from_text("20", "--epochs")
    20
    >>> CountOption(1).from_text("many", "--epochs")
    Traceback (most recent call last):
    caldera.errors.ConfigError: --epochs: expected an integer >= 1, got 'many'
    """

    least: int = 0

    placeholder = "N"

    @property
    def expected(self) -> str:
        return f"an integer >= {self.least}"

    def read(self, text: str) -> int:
        return int(text)

    def accept(self, value: Any) -> int:
        # bool is an int to Python, but `epochs = true` is a mistake.
        if not isinstance(value, int) or isinstance(value, bool) or value < self.least:
            raise ValueError
        return value


@dataclass(frozen=True)
class Number(OptionType):
    """A finite number.

    >>> Number().from_text("1e-3", "--learning-rate")
    0.001
    """

    placeholder = "X"
    expected = "a number"

    def read(self, text: str) -> float:
        return float(text)

    def accept(self, value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError
        if not math.isfinite(value):
            raise ValueError
        return float(value)


@dataclass(frozen=True)
class TextOption(OptionType):
    """Option whose value is a non-empty text.

    >>> TextOption("FOLDER").from_text("out", "--out")
    'out'
    """

    placeholder: str = "TEXT"
    expected = "a text"

    def accept(self, value: Any) -> Any:
        if not isinstance(value, str) or not value:
            raise ValueError
        return value


@dataclass(frozen=True)
class Texts(TextOption):
    """Comma-separated texts; a single text becomes a list with one item.

    >>> Texts("COLUMN,...").from_text("width,length", "--columns")
    ['width', 'length']
    """

    expected = "texts with commas between them"

    def read(self, text: str) -> Any:
        return text.split(",")

    def accept(self, value: Any) -> Any:
        return [super(Texts, self).accept(each) for each in _as_list(value)]


@dataclass(frozen=True)
class Flag(OptionType):
    """True or false: on the command line, --mirror or --no-mirror.

    >>> Flag().checked(True, "recipe.toml mirror")
    True
    """

    placeholder = ""
    expected = "true or false"

    def read(self, text: str) -> bool:
        if text not in ("true", "false"):
            raise ValueError
        return text == "true"

    def accept(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value


@dataclass(frozen=True)
class CountsOption(OptionType):
    """Comma-separated integers >= 1; a single integer becomes a list with one item.

    >>> CountsOption().from_text("528,528", "--hidden")
    [528, 528]
    """

    placeholder: str = "N,N,..."
    expected = "integers >= 1, such as 528,528"

    def read(self, text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    def accept(self, value: Any) -> list[int]:
        return [CountOption(1).accept(number) for number in _as_list(value)]


@dataclass(frozen=True)
class NameOption(OptionType):
    """A name from a set, which is read when needed, so that later registrations count.

    >>> NameOption("optimizer", lambda: ["adam", "sgd"]).from_text("adm", "--optimizer")
    Traceback (most recent call last):
    caldera.errors.ConfigError: --optimizer: expected an optimizer, got 'adm'; did you mean 'adam'?
    """

    what: str
    names: Callable[[], Iterable[str]]

    placeholder = "NAME"

    @property
    def expected(self) -> str:
        return f"{'an' if self.what[0] in 'aeiou' else 'a'} {self.what}"

    def accept(self, value: Any) -> Any:
        if not isinstance(value, str) or value not in set(self.names()):
            raise ValueError
        return value

    def hint(self, value: Any) -> str:
        return nearest(value, self.names())


@dataclass(frozen=True)
class Names(NameOption):
    """Option whose value is a comma-separated list of these names.

    >>> Names("metric", lambda: ["accuracy", "f1"]).from_text("accuracy,f1", "--metrics")
    ['accuracy', 'f1']
    """

    placeholder = "NAME,NAME,..."

    def read(self, text: str) -> list[str]:
        return text.split(",")

    def accept(self, value: Any) -> list[str]:
        return [super(Names, self).accept(each) for each in _as_list(value)]

    def hint(self, value: Any) -> str:
        given = value.split(",") if isinstance(value, str) else _as_list(value)
        known = set(self.names())
        return super().hint(next((each for each in given if each not in known), value))


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# --- writing recipes


def toml_text(values: Mapping[str, Any]) -> str:
    """Return keys and plain values as TOML.

    >>> print(toml_text({"model": "mlp", "hidden": [64, 64], "learning_rate": 1e-05}), end="")
    model = "mlp"
    hidden = [64, 64]
    learning_rate = 1e-05
    """
    return "".join(f"{key} = {_toml_value(value)}\n" for key, value in values.items())


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for one character that JSON leaves as it is.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(each) for each in value) + "]"
    return repr(value)
