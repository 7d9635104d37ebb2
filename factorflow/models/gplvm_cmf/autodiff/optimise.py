"""Adam, as PyTorch has it [1]_: its functional form, whose state comes in and goes out.

(``torch.optim.Adam`` itself is the same function, behind two seconds of imports of PyTorch's compiler.)

References
----------
.. [1] D. P. Kingma, J. Ba (2015), "Adam: a method for stochastic optimization", ICLR.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.optim.adam import adam

from factorflow.core.block import Array
from factorflow.models.gplvm_cmf.autodiff.tensors import as_array, as_tensor, one_thread
from factorflow.models.gplvm_cmf.state import Arrays

FAST, SLOW, TINY = 0.9, 0.999, 1e-8  # decay of the two moments, and what keeps it from dividing by 0


class Adam:
    """Steps uphill along the gradients of some tensors, which are moved in place.

    Parameters
    ----------
    first, second : sequence of tensor, optional
        Running means of the gradients and of their squares; 0 when left out.
    steps : float, or sequence of float
        Steps before, of all or of each.
    """

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        first: Sequence[torch.Tensor] | None = None,
        second: Sequence[torch.Tensor] | None = None,
        steps: float | Sequence[float] = 0.0,
    ) -> None:
        self.tensors = list(tensors)
        self.first = list(first or map(torch.zeros_like, self.tensors))
        self.second = list(second or map(torch.zeros_like, self.tensors))
        each = [steps] * len(self.tensors) if isinstance(steps, float) else steps
        self._steps = [torch.tensor(n, dtype=torch.float64) for n in each]

    def step(self, gradients: Sequence[torch.Tensor], rate: float | Sequence[float]) -> None:
        """Make a step of this length, or of one for each; one tensor at a time: its bits are its own."""
        lengths = [rate] * len(self.tensors) if isinstance(rate, float) else rate
        with torch.no_grad():
            for i, length in enumerate(lengths):
                adam(
                    [self.tensors[i]],
                    [gradients[i]],
                    [self.first[i]],
                    [self.second[i]],
                    [],
                    [self._steps[i]],
                    foreach=False,
                    amsgrad=False,
                    beta1=FAST,
                    beta2=SLOW,
                    lr=length,
                    weight_decay=0.0,
                    eps=TINY,
                    maximize=True,
                )


@one_thread()
def ascend(
    values: Arrays,
    first: Arrays,
    second: Arrays,
    gradients: Arrays,
    steps: float | Mapping[str, float],
    rate: float,
    shares: Mapping[str, float] | None = None,
) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
    """Return parameters and moments after one step along the gradients; those without one stay.

    Parameters
    ----------
    values, first, second : mapping of str to array
        Parameters, and running means of their gradients and of the squares.
    steps : float, or mapping of str to float
        Steps before this one, of all or of each parameter.
    rate : float
        Length of a step.
    shares : mapping of str to float, optional
        What share of that length each parameter takes; all of it when left out.
    """
    states = [{name: as_tensor(arrays[name]) for name in gradients} for arrays in (values, first, second)]
    now, mean, square = (list(tensors.values()) for tensors in states)
    each = steps if isinstance(steps, Mapping) else dict.fromkeys(gradients, float(steps))
    optimiser = Adam(now, mean, square, [each[name] for name in gradients])
    lengths = [rate * (shares or {}).get(name, 1.0) for name in gradients]
    optimiser.step([as_tensor(gradient) for gradient in gradients.values()], lengths)
    moved = [{name: as_array(tensor) for name, tensor in tensors.items()} for tensors in states]
    return dict(values) | moved[0], dict(first) | moved[1], dict(second) | moved[2]
