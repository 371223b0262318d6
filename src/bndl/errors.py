"""What can go wrong, by what the user should do about it."""


class BndlError(Exception):
    """Base of all errors of this package: catch it to catch them all."""


class InputError(BndlError, ValueError):
    """The data do not fit: wrong dims, not finite, labels out of range, an empty loader. Mend the data."""


class HeadError(BndlError, ValueError):
    """The model's head could not be told, or is none of ours. Name it with ``head=`` or call ``bndl.convert`` first."""


class FileError(BndlError, OSError):
    """A file is missing, damaged or foreign. Nothing was changed; give another file or write it again."""


class MissingExtraError(BndlError, ImportError):
    """An optional dependency is not installed. The message holds the command that installs it."""

    def __init__(self, what: str, *, extra: str) -> None:
        super().__init__(f'{what} needs an optional dependency: pip install "bndl[{extra}]"')
