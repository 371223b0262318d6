"""Image files as a source: decoded in threads, the damaged ones left out and listed."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bndl.data.folder import Damaged
from bndl.data.sets import digest
from bndl.errors import FileError
from bndl.stream.names import to_text
from bndl.stream.source import Batch, Bounds, stamp

__all__ = ["ImageFiles"]

_Read = tuple[str, Tensor | Damaged]


@dataclass(frozen=True)
class ImageFiles:
    """Files below a folder, in order.

    Attributes:
        root: the folder.
        files: relative to it.
        read: file -> (C, H, W) uint8.
        workers: threads that decode; Pillow frees the interpreter.
        strict: a file that cannot be decoded is an error.
    """

    root: Path
    files: tuple[str, ...]
    read: Callable[[Path], Tensor]
    workers: int = 1
    strict: bool = False
    images: bool = True

    @property
    def count(self) -> int:
        """How many files there are."""
        return len(self.files)

    def fingerprint(self) -> str:
        """Of the names, lengths and times of all files."""
        return digest(stamp(self.root, file) for file in self.files)

    def name(self, position: int) -> str:
        """The file's, as text."""
        return to_text(self.files[position])

    def batches(self, bounds: Iterable[Bounds]) -> Iterator[Batch]:
        """Decode; the images of the next batch are under way when one is given."""
        with ThreadPoolExecutor(self.workers, thread_name_prefix="bndl-decode") as pool:
            waiting: deque[tuple[Bounds, list[Future[_Read]]]] = deque()
            try:
                for bound in bounds:
                    waiting.append((bound, [pool.submit(self._decode, position) for position in range(*bound)]))
                    if len(waiting) > 1:
                        yield self._gathered(*waiting.popleft())
                while waiting:
                    yield self._gathered(*waiting.popleft())
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _decode(self, position: int) -> _Read:
        file = self.files[position]
        try:
            return self.name(position), self.read(self.root / file)
        except FileError as error:
            if self.strict:
                raise FileError(f"{str(error).rstrip('.')}; or leave out --strict to skip it.") from error
            return self.name(position), Damaged(self.name(position), str(error.__cause__ or error))

    def _gathered(self, bounds: Bounds, decoding: "list[Future[_Read]]") -> Batch:
        found = [future.result() for future in decoding]
        pixels = [(name, image) for name, image in found if isinstance(image, Tensor)]
        damaged = tuple(image for _, image in found if isinstance(image, Damaged))
        inputs = torch.stack([image for _, image in pixels]) if pixels else None
        return Batch(bounds, inputs, [name for name, _ in pixels], damaged)
