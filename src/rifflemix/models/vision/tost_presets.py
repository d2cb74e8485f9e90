"""Named sizes of ToST and of its baselines, XCiT and CRATE."""

from __future__ import annotations

from typing import Any

from rifflemix.models.presets import ModelCard, Preset
from rifflemix.models.vision.tost import ToST

_PAPER = (
    "Wu et al. 2024, Token Statistics Transformer: Linear-Time Attention via Variational Rate "
    "Reduction"
)
_XCIT_PAPER = "El-Nouby et al. 2021, XCiT: Cross-Covariance Image Transformers"
_CRATE_PAPER = "Yu et al. 2023, White-Box Transformers via Sparse Rate Reduction"
_TINY: dict[str, Any] = {"dim": 192, "num_heads": 4}
_SMALL: dict[str, Any] = {"dim": 384, "num_heads": 8}
_MEDIUM: dict[str, Any] = {"dim": 512, "num_heads": 8}
_LARGE: dict[str, Any] = {"dim": 768, "num_heads": 16}
_SHALLOW: dict[str, Any] = {"num_layers": 12, "layer_scale": 1.0}
_DEEP: dict[str, Any] = {"num_layers": 24, "layer_scale": 1e-5}
_UNPRINTED = "registered in the released code; the paper trains no such size"


def _tost(name: str, title: str, patch_size: int, settings: dict[str, Any], **card: Any) -> Preset:
    about = {"note": _UNPRINTED} | card
    return Preset(
        ModelCard(
            name=name,
            title=f"{title}, patches of {patch_size}",
            inputs="images",
            **({"paper": _PAPER} | about),
        ),
        ToST,
        {"mixer": "tssa", "patch_size": patch_size, **settings},
    )


def _family(patch_size: int) -> tuple[Preset, ...]:
    """Return all ToST sizes with one patch size.

    The paper reports three sizes, with patch size 16.
    """
    sizes: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("tiny", "ToST-T", {**_TINY, **_SHALLOW}),
        ("small", "ToST-S", {**_SMALL, **_SHALLOW, "drop_path": 0.05}),
        ("medium", "ToST-M", {**_MEDIUM, **_DEEP, "drop_path": 0.15}),
        ("tiny_24", "ToST-T of 24 layers", {**_TINY, **_DEEP}),
        ("small_24", "ToST-S of 24 layers", {**_SMALL, **_DEEP}),
        ("large", "ToST-L", {**_LARGE, **_DEEP}),
    )
    cards = _PRINTED if patch_size == 16 else {}
    return tuple(
        _tost(f"tost_{size}_{patch_size}", title, patch_size, settings, **cards.get(size, {}))
        for size, title, settings in sizes
    )


_PRINTED: dict[str, dict[str, Any]] = {
    "tiny": {"printed": "5.8 M", "printed_in": "Table 2", "note": ""},
    "small": {"printed": "22.6 M", "printed_in": "Table 2", "note": ""},
    "medium": {
        "printed": "68.1 M",
        "printed_in": "Table 2",
        "note": "the released code builds 71.48 M, as this does",
    },
}


def _xcit(size: str, title: str, settings: dict[str, Any], printed: str, built: str) -> Preset:
    return _tost(
        f"xcit_{size}_16",
        f"{title} without local patch interaction",
        16,
        {**settings, "mixer": "xca"},
        paper=_XCIT_PAPER,
        printed=printed,
        printed_in="Wu et al. 2024 (ToST), Table 2",
        note=f"the released code of ToST builds {built}, as this does",
    )


PRESETS = (
    *_family(16),
    *_family(8),
    _xcit("small", "XCiT-S", {**_SMALL, **_SHALLOW, "drop_path": 0.05}, "24.9 M", "26.14 M"),
    _xcit("medium", "XCiT-M", {**_MEDIUM, **_DEEP, "drop_path": 0.15}, "80.2 M", "84.09 M"),
    _tost(
        "tost_ista_tiny_16",
        "ToST-T with a sparse coding step (ISTA) for the feed-forward branch",
        16,
        {**_TINY, **_SHALLOW, "feed_forward": "ista"},
        note="the variant of the ablation in Table 8, which prints no size",
    ),
    _tost(
        "crate_tiny_16",
        "CRATE-style: subspace attention and ISTA in the host of ToST-T",
        16,
        {**_TINY, **_SHALLOW, "mixer": "crate", "feed_forward": "ista"},
        paper=_CRATE_PAPER,
        note="CRATE's two operators between the patch embedding and class attention of ToST",
    ),
)
