"""Clusters by first neighbours (FINCH), which asks neither for their number nor for a threshold.

Every row is linked to its nearest other row by cosine; what hangs together is a cluster. The means
of clusters are clustered again until everything would be one. (Sarfraz, Sharma and Stiefelhagen,
Efficient Parameter-free Clustering Using First Neighbor Relations, CVPR 2019.)
"""

from __future__ import annotations

import torch
from torch import Tensor


def coarsest(rows: Tensor) -> list[int]:
    """The cluster of each row [n, D], numbered by first appearance, at the coarsest level.

    That is the last one with more than one cluster; the first one, if it has no more than one.

    >>> coarsest(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [0.1, 1.0]]))
    [0, 1, 0, 1]
    """
    rows = rows.detach().to("cpu", torch.float64)
    labels = linked(first_neighbours(rows))
    while max(labels) > 0:
        above = linked(first_neighbours(cluster_means(rows, labels)))
        if max(above) == 0:
            break
        labels = [above[k] for k in labels]
    return labels


def cluster_means(rows: Tensor, labels: list[int]) -> Tensor:
    """The mean of each cluster's rows [clusters, D].

    >>> cluster_means(torch.tensor([[1.0], [2.0], [4.0]]), [0, 1, 1])
    tensor([[1.],
            [3.]])
    """
    index = torch.tensor(labels, device=rows.device)
    member = torch.nn.functional.one_hot(index).to(rows.dtype)
    return (member / member.sum(dim=0)).T @ rows


def first_neighbours(rows: Tensor) -> list[int]:
    """For each row the place of the nearest other row by cosine (a single row is its own)."""
    unit = torch.nn.functional.normalize(rows, dim=1)
    likeness = unit @ unit.T
    likeness.fill_diagonal_(-torch.inf)
    nearest: list[int] = likeness.argmax(dim=1).tolist()
    return nearest


def linked(neighbours: list[int]) -> list[int]:
    """The connected component of each place, where each is linked to one other.

    >>> linked([2, 3, 0, 1, 0])
    [0, 1, 0, 1, 0]
    """
    root = list(range(len(neighbours)))

    def find(i: int) -> int:
        while root[i] != i:
            i = root[i]
        return i

    for i, j in enumerate(neighbours):
        a, b = sorted((find(i), find(j)))
        root[b] = a
    first: dict[int, int] = {}
    return [first.setdefault(find(i), len(first)) for i in range(len(root))]
