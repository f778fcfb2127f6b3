"""Work that a GPU does again and again, recorded once and launched as a whole: a CUDA graph.

A kernel of a small model takes less time than its launch from Python. A recorded step has all its
kernels, in order and with the addresses that they read and write; one launch replays them.
"""

from collections.abc import Callable

import torch
from torch import Tensor

WARM_UP = 3
"""Calls that run as they are before one is recorded: the first ones prepare libraries."""


class CudaGraph:
    """Calls of a function of tensors, replayed from a recording on a GPU.

    The function must do the same at every call, with tensors of the same shapes, and never wait for
    the GPU. On a CPU it is called each time.
    """

    def __init__(self) -> None:
        self._n_calls = 0
        self._stream: torch.cuda.Stream | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor] = []
        self._outputs: tuple[Tensor, ...] = ()

    def __call__(
        self, work: Callable[..., tuple[Tensor, ...]], *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        """What ``work(*inputs)`` returns, as tensors that later calls leave alone."""
        if inputs[0].device.type != "cuda":
            return work(*inputs)
        self._n_calls += 1
        with torch.cuda.device(inputs[0].device):
            if self._n_calls <= WARM_UP:
                return self._aside(work, *inputs)
            self._graph = graph = self._graph or self._recorded(work, *inputs)
            for recorded, given in zip(self._inputs, inputs, strict=True):
                recorded.copy_(given)
            graph.replay()
            return tuple(output.clone() for output in self._outputs)

    def _aside(
        self, work: Callable[..., tuple[Tensor, ...]], *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        """Run it as it is, on the stream on which it is recorded later."""
        current = torch.cuda.current_stream()
        if self._stream is None:
            self._stream = type(current)()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            outputs = work(*inputs)
        current.wait_stream(self._stream)
        return outputs

    def _recorded(
        self, work: Callable[..., tuple[Tensor, ...]], *inputs: Tensor
    ) -> torch.cuda.CUDAGraph:
        self._inputs, graph = [given.clone() for given in inputs], torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            self._outputs = work(*self._inputs)
        return graph
