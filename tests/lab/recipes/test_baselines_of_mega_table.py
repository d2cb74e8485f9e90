"""Check that the rows quoted by the CSP paper have the original sizes and can learn."""

from __future__ import annotations

import pytest
import torch

from rifflemix.lab.recipes import get_recipe, list_recipes
from rifflemix.lab.recipes.baselines_of_mega_table import ROWS
from rifflemix.lab.train.optim import learning_rate
from rifflemix.models import create_model

NAMES = [name for name in list_recipes() if name.startswith("csp/") and name.split("-")[-1] in ROWS]


def test_every_entry_except_two_failed_ones_has_a_number() -> None:
    assert len(NAMES) == 28
    assert all(get_recipe(name).printed for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_notes_name_the_source_of_the_numbers(name: str) -> None:
    recipe = get_recipe(name)
    assert recipe.notes[0].startswith("quoted ")
    assert len(recipe.notes) >= 2
    assert learning_rate(recipe.train, recipe.train.max_steps // 2) > 0


@pytest.mark.parametrize(
    ("task", "row", "mixer", "expected"),
    [
        ("listops", "s4", "s4", {"state_size": None, "bidirectional": False}),
        ("image", "s5", "s5", {"bidirectional": True}),
        ("text", "ccnn", "long_conv", {"causal": True, "span": 4096}),
        ("pathfinder", "etsmlp", "exp_smoothing", {}),
        ("pathx", "spade", "spade", {"radius": 64}),
    ],
)
def test_blocks_contain_their_mixer(
    task: str, row: str, mixer: str, expected: dict[str, object]
) -> None:
    recipe = get_recipe(f"csp/table4-{task}-{row}")
    with torch.device("meta"):
        model = create_model(recipe.model, **recipe.model_settings)
    for block in model.blocks:
        assert block.mixer.card.name == mixer
        for name, value in expected.items():
            if value is not None:
                assert getattr(block.mixer, name) == value
    assert (recipe.model == "encoder") == (row == "spade")


SIZES = {
    "s4": {"listops": (6, 128, "post", "batch"), "image": (6, 512, "post", "layer")},
    "s5": {"listops": (8, 128, "pre", "batch"), "pathfinder": (6, 192, "pre", "batch")},
    "ccnn": {"text": (6, 380, "pre", "batch"), "image": (6, 380, "pre", "batch")},
    "etsmlp": {"listops": (12, 160, "pre", "layer"), "image": (12, 160, "pre", "batch")},
}


@pytest.mark.parametrize(("row", "task"), [(row, task) for row in SIZES for task in SIZES[row]])
def test_sizes_are_the_published_ones(row: str, task: str) -> None:
    recipe = get_recipe(f"csp/table4-{task}-{row}")
    with torch.device("meta"):
        model = create_model(recipe.model, **recipe.model_settings)
    layers, dim, norm, kind = SIZES[row][task]
    assert len(model.blocks) == layers
    assert model.blocks[0].mixer.dim == dim
    assert model.blocks[0].is_post_norm == (norm == "post")
    assert {block.norm.kind for block in model.blocks} == {kind}
    assert isinstance(model.norm, torch.nn.Identity) == (norm == "post")


@pytest.mark.parametrize(
    ("task", "hidden"),
    {
        "listops": 160,
        "text": 160,
        "retrieval": 160,
        "image": 320,
        "pathfinder": 256,
        "pathx": 256,
    }.items(),
)
def test_etsmlp_smooths_the_channels_of_its_gated_architectures(task: str, hidden: int) -> None:
    """Use `encoder_k_dim` of the ..._gate architectures, not of their base architectures."""
    recipe = get_recipe(f"csp/table4-{task}-etsmlp")
    with torch.device("meta"):
        model = create_model(recipe.model, **recipe.model_settings)
    for block in model.blocks:
        assert block.mixer.k_proj.out_features == hidden
        assert block.mixer.g_proj is not None


def test_a_block_of_ccnn_drops_once() -> None:
    """Check that dropout is between the mixer's two maps; the release has no dropout after them."""
    recipe = get_recipe("csp/table4-image-ccnn")
    with torch.device("meta"):
        model = create_model(recipe.model, **recipe.model_settings)
    for block in model.blocks:
        assert block.mixer.dropout == recipe.model_settings["dropout"] == 0.1
        assert block.drop.p == 0.0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("csp/table4-image-s4", "whole channels"),
        ("csp/table4-pathfinder-s4", "whole channels"),
        ("csp/table4-pathx-s4", "0.0001"),
        ("tost/table3-image-s4", "whole channels"),
        ("tost/table3-pathfinder-s4", "last token"),
    ],
)
def test_s4_notes_the_settings_of_each_task(name: str, words: str) -> None:
    assert words in " ".join(get_recipe(name).notes)
    assert words not in " ".join(get_recipe(name.replace(name.split("-")[1], "text")).notes)


@pytest.mark.parametrize(
    ("task", "init_value"),
    [("listops", 0.03), ("text", 0.03), ("image", 0.075), ("pathfinder", 0.4)],
)
def test_ccnn_converts_windows_of_its_commands_to_sequences(task: str, init_value: float) -> None:
    """The unit of `mask.init_value` is positions in [-1, 1]; our unit is `max_length`."""
    recipe = get_recipe(f"csp/table4-{task}-ccnn")
    assert recipe.model_settings["mixer_options"]["width"] == init_value / 2.0
    assert recipe.model_settings["causal"]


@pytest.mark.parametrize("task", ["listops", "text", "retrieval", "image", "pathfinder", "pathx"])
def test_s5_notes_the_settings_of_each_task(task: str) -> None:
    recipe = get_recipe(f"csp/table4-{task}-s5")
    notes = " ".join(recipe.notes)
    assert ("gate multiplies" in notes) == (task in ("listops", "text"))  # --activation_fn
    assert ("sqrt(channels)" in notes) == (task in ("listops", "text", "image"))  # --C_init
    assert ("0.0001" in notes) == (task == "pathx")  # --dt_min
    assert ("0.95" in notes) == (task not in ("pathfinder", "pathx"))  # --bn_momentum
    assert ("eigenvalues and steps" in notes) == (task in ("listops", "image"))  # --opt_config
    assert ("eigenvalues and B" in notes) == (task in ("text", "retrieval"))  # --dt_global
    if task == "retrieval":
        assert recipe.model_settings["head_activation"] == "gelu"


@pytest.mark.parametrize(
    ("row", "vectors"), [("s4", 4), ("s5", 4), ("etsmlp", 2), ("mega", 2), ("spade", 4)]
)
def test_pairs_are_joined_as_in_each_codebase(row: str, vectors: int) -> None:
    recipe = get_recipe(f"csp/table4-retrieval-{row}")
    with torch.device("meta"):
        model = create_model(recipe.model, **recipe.model_settings)
    last = [part for part in model.head.modules() if isinstance(part, torch.nn.Linear)]
    assert last[0].in_features == vectors * model.blocks[0].mixer.dim


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_small_model_learns(row: str) -> None:
    """Check learning in a few steps: are most symbols in the upper half?"""
    torch.manual_seed(0)
    recipe = get_recipe(f"csp/table4-listops-{row}")
    small = {"dim": 16, "num_layers": 2, "max_length": 12, "num_classes": 2, "dropout": 0.0}
    options = dict(recipe.model_settings["mixer_options"])
    options |= {"state_size": 8, "num_blocks": 2} if row == "s5" else {}
    options |= {"hidden_dim": 16} if row == "etsmlp" else {}
    options |= {"frequency": 2.0, "width": 0.5} if row == "ccnn" else {}
    model = create_model(
        recipe.model, **{**recipe.model_settings, **small, "mixer_options": options}
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(60):
        ids = torch.randint(1, 16, (64, 11))
        labels = ((ids > 7).sum(dim=1) > 5).long()
        loss = torch.nn.functional.cross_entropy(model(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) < 0.75 * sum(losses[:10])
