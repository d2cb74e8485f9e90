"""Declare operators so that timm can import a torchvision built for another torch."""

from __future__ import annotations

import torch

_OPERATORS = (
    "nms",
    "qnms",
    "roi_align",
    "qroi_align",
    "ps_roi_align",
    "roi_pool",
    "ps_roi_pool",
    "deform_conv2d",
    "_roi_align_backward",
    "_ps_roi_align_backward",
    "_roi_pool_backward",
    "_ps_roi_pool_backward",
    "_deform_conv2d_backward",
)
_libraries: list[torch.library.Library] = []  # a declaration is valid as long as its library exists


def declare_operators() -> None:
    """Declare the operators before the first import of torchvision.

    This is harmless if torchvision's own library loads.
    """
    if _libraries or hasattr(torch.ops.torchvision, "nms"):
        return
    library = torch.library.Library("torchvision", "DEF")
    for name in _OPERATORS:
        library.define(f"{name}(Tensor x) -> Tensor")
    _libraries.append(library)
