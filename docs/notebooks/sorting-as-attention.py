# %% [markdown]
# # Sorting as attention
#
# Attention makes every new token a weighted mean of old ones. A sort makes every new value a copy
# of an old one. Both are a matrix times a column of values, and this notebook shows how far that
# goes: one channel by hand, then many, then a layer, then a model that learns to read digits
# while you watch. It needs `pip install "rifflemix[notebooks]" jupyterlab`, no GPU and no
# download.

# %%
import matplotlib.pyplot as plt
import torch
from IPython.display import Markdown, display
from matplotlib.colors import ListedColormap
from torch import nn

import rifflemix as rm

torch.manual_seed(0)
plt.rcParams.update({"figure.dpi": 110, "font.size": 10, "figure.constrained_layout.use": True})
# The colours of Okabe and Ito, which the colour-blind tell apart.
TOKENS = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#999999"]
BLUE, ORANGE = TOKENS[4], TOKENS[5]


def show(figure, words):
    """The picture, and what it shows for those who cannot see it."""
    display(figure, metadata={"image/png": {"alt": words}})
    plt.close(figure)


# %% [markdown]
# ## One channel, by hand
#
# Eight tokens, one number each. To sort them, ask which token has the smallest number, which the
# next, and so on: that is `argsort`. Write a one for each answer into a matrix, a row for every new
# token and a column for every old one.

# %%
values = torch.rand(8)
order = values.argsort(stable=True)
permutation = nn.functional.one_hot(order, 8).float()

print("values     ", [f"{v:.2f}" for v in values])
print("comes from ", order.tolist())
print("matrix @ v ", [f"{v:.2f}" for v in permutation @ values])
assert torch.equal(permutation @ values, values.sort().values)

# %% [markdown]
# Softmax attention asks the same question, but takes no for an answer: row *n* scores every token
# and mixes all of them by their score. Here the query of row *n* is the *n*-th smallest number and
# the keys are the numbers themselves, so that both matrices look for the same token. Each row of
# either sums to one. Only in the permutation does each *column* sum to one as well: every old value
# is used exactly once, and none is blurred or lost.

# %%
queries = values.sort().values
scores = -((queries[:, None] - values[None, :]) ** 2) / 0.02
softmax = scores.softmax(-1)

figure, panels = plt.subplots(1, 2, figsize=(6.4, 3.4), sharey=True)
for axes, matrix, title in zip(panels, (softmax, permutation), ("softmax", "sort"), strict=True):
    axes.imshow(matrix, cmap="cividis", vmin=0, vmax=1)
    axes.set(title=title, xlabel="old token", xticks=range(8), yticks=range(8))
panels[0].set_ylabel("new token")
show(
    figure,
    "Two matrices with a row for each of eight new tokens. Softmax spreads each row over several "
    f"old tokens, at most {softmax.max():.2f} on one; the sort has a single one in every row and "
    "column.",
)
print("columns of softmax sum to", [f"{s:.2f}" for s in softmax.sum(0)])
print("columns of the sort to   ", [f"{s:.2f}" for s in permutation.sum(0)])
print(f"spread of the values: {values.std():.3f}; after softmax {(softmax @ values).std():.3f}, "
      f"after the sort {(permutation @ values).std():.3f}")  # fmt: skip

# %% [markdown]
# `rm.ops.group_sort` is this operator for a batch of tokens with many channels, (B, N, C). It says
# where every value came from, so that you never have to build the matrix.

# %%
sorted_values, index = rm.ops.group_sort(
    values.reshape(1, 8, 1), order="ascending", return_indices=True
)
assert torch.equal(sorted_values.flatten(), permutation @ values)
assert torch.equal(index.flatten(), order)

# %% [markdown]
# ## Can it learn?
#
# A sort has no weights, and the place of a value jumps. Yet the *values* move smoothly: a little
# more of an old value is a little more of the new one it became. So the gradient goes back the
# way that the value came, one to one. What learns is the linear map before the sort, which
# decides what each channel is sorted by.

# %%
x = torch.rand(1, 8, 1, requires_grad=True)
y, index = rm.ops.group_sort(x, order="ascending", return_indices=True)
gradient = torch.arange(8.0).reshape(1, 8, 1)
y.backward(gradient)
print("gradient that came to the new tokens ", gradient.flatten().tolist())
print("gradient that reached the old tokens ", x.grad.flatten().tolist())
assert torch.equal(x.grad.gather(1, index), gradient)

# %% [markdown]
# ## Many channels: who is in a new token?
#
# Each channel is sorted by itself, so that each has a permutation of its own: a new token is put
# together from several old ones. CSP (channel-wise sample permutation) does it in two cheap steps.
# It moves channel *c* in a circle by a step of its own, then sorts within small groups. Colour and
# number say which token a value came from.

# %%
x = torch.rand(1, 8, 4)
steps = rm.ops.shift_steps("linear", 8, 4)
origin = torch.arange(8.0).reshape(1, 8, 1).expand_as(x)
out, index = rm.ops.channel_permute(x, steps, 4, return_indices=True)
assert torch.equal(out, rm.ops.group_sort(rm.ops.circular_shift(x, steps), 4))

stages = {
    "tokens": origin,
    f"shifted by {', '.join(map(str, steps.tolist()))}": rm.ops.circular_shift(origin, steps),
    "pairs sorted": index,
}
figure, panels = plt.subplots(1, 3, figsize=(6.4, 3.6), sharey=True)
for axes, (title, sources) in zip(panels, stages.items(), strict=True):
    axes.imshow(sources[0], cmap=ListedColormap(TOKENS), vmin=0, vmax=7, aspect="auto")
    for n in range(8):
        for c in range(4):
            axes.text(c, n, f"{int(sources[0, n, c])}", ha="center", va="center", fontweight="bold")
    axes.set(xlabel="channel", xticks=range(4), yticks=range(8))
    axes.set_title(title, fontsize=10)
panels[0].set_ylabel("place")
for place in range(1, 4):
    panels[2].axhline(2 * place - 0.5, color="black", linewidth=2)
show(
    figure,
    "Three grids of eight places and four channels, each cell numbered by the token that its value "
    "came from. At first every row has one number; after the shift each channel is moved by its "
    "step; after the sort neighbours in a pair have changed places in some channels.",
)
for n in range(8):
    print(f"new token {n} is made of old tokens {index[0, n].tolist()}")

# %% [markdown]
# Pairs order themselves like channel 0, which the shift left in its place: `order="reference"`, as
# the paper has it. Nothing here needs a matrix of all tokens times all tokens, and the cost grows
# with N, not with N².
#
# ## A layer
#
# Around the permutation stand two linear maps, one that makes the values and one that mixes the
# channels again. There are no queries and no keys, hence half the parameters of attention.

# %%
for name in ("softmax", "csp"):
    mixer = rm.create_mixer(name, 64, num_heads=4)
    count = sum(p.numel() for p in mixer.parameters())
    print(f"{name:8s} {count:6,} parameters, cost {rm.mixer_card(name).complexity}")

# %% [markdown]
# ## A model that reads
#
# The package holds handwritten digits, 8 by 8 pixels. Cut into patches of 2 by 2, a digit is a
# sequence of 16 tokens.

# %%
task = rm.tasks.load_task("digits", patch_size=2)
data = {}
for name in ("train", "validation", "test"):
    split = task.split(name)
    data[name] = task.collate([split[i] for i in range(len(split))])
print({name: tuple(part["inputs"].shape) for name, part in data.items()})


def as_picture(tokens):
    """(16, 4) patches of a digit -> (8, 8) pixels."""
    return tokens.reshape(4, 4, 2, 2).permute(0, 2, 1, 3).reshape(8, 8)


figure, panels = plt.subplots(1, 6, figsize=(6.4, 1.5))
for axes, tokens, label in zip(
    panels, data["train"]["inputs"], data["train"]["labels"], strict=False
):
    axes.imshow(as_picture(tokens), cmap="gray_r", extent=(0, 8, 8, 0))
    axes.set(title=f"{label}", xticks=range(0, 9, 2), yticks=range(0, 9, 2))
    axes.tick_params(labelbottom=False, labelleft=False, length=0)
    axes.grid(color=BLUE, linewidth=0.6)
labels = ", ".join(str(int(label)) for label in data["train"]["labels"][:6])
show(figure, f"Six handwritten digits, {labels}, each cut into sixteen patches by a grid.")

# %% [markdown]
# Now train a small encoder with CSP in place of attention. The picture is drawn anew every few
# steps: above, what the model has learned so far; below, what the sort of its first layer does to
# one digit of the validation split. The shift is the same for every digit; which pairs are
# exchanged after it, the digit decides, through the map that is being learned.

# %%
STEPS, BATCH = 240, 32


def encoder(mixer):
    """A small classifier, the same but for its mixer."""
    torch.manual_seed(0)
    return rm.create_model(
        "encoder", in_channels=4, max_length=16, num_classes=10, dim=64, num_heads=4, mixer=mixer
    )


@torch.no_grad()
def accuracy(model, split):
    """In percent."""
    found = model.eval()(data[split]["inputs"]).argmax(-1)
    return 100 * (found == data[split]["labels"]).float().mean().item()


def sources(model):
    """(N, C): where the values of the first layer come from, for the first validation digit."""
    (calls,) = rm.analysis.trace(model, [data["validation"]["inputs"][:1]])
    return rm.analysis.permutation_of(calls[0])[0]


def exchanged(places):
    """(N, C): whether a value stands elsewhere than the shift alone would have put it."""
    shift = rm.ops.shift_steps("linear", *places.shape)
    return places != (torch.arange(len(places))[:, None] - shift) % len(places)


def draw(losses, accuracies, places):
    """Both curves, and what the sort exchanges below them."""
    figure, (left, below) = plt.subplots(2, 1, figsize=(6.4, 4.6), height_ratios=(1.3, 1))
    left.plot(losses, color=ORANGE, linewidth=1)
    left.set(xlim=(0, STEPS), ylim=(0, 2.6), xlabel="step")
    left.set_ylabel("training loss", color=ORANGE)
    right = left.twinx()
    right.plot(*zip(*accuracies, strict=True), color=BLUE, marker="o", markersize=4)
    right.set_ylim(0, 100)
    right.set_ylabel("validation accuracy, %", color=BLUE)
    below.imshow(exchanged(places), cmap=ListedColormap(["#e4e4e4", BLUE]), aspect="auto")
    below.set(xlabel="channel", ylabel="new token", title="blue: exchanged by the sort")
    return figure


def train(model, live=None):
    """Adam on random batches; `live` gets the picture as it grows."""
    draws = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses, accuracies = [], [(0, accuracy(model, "validation"))]
    for step in range(1, STEPS + 1):
        rows = torch.randint(len(data["train"]["labels"]), (BATCH,), generator=draws)
        logits = model.train()(data["train"]["inputs"][rows])
        loss = nn.functional.cross_entropy(logits, data["train"]["labels"][rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 40 == 0:
            accuracies.append((step, accuracy(model, "validation")))
            if live is not None:
                live(losses, accuracies)
    return accuracies


csp = encoder("csp")
before = sources(csp)
first = draw([], [(0, accuracy(csp, "validation"))], before)
picture = display(first, display_id=True)
plt.close(first)


def live(losses, accuracies):
    """Put the newest picture in the place of the last."""
    figure = draw(losses, accuracies, sources(csp))
    words = (
        f"Above, over {len(losses)} steps the training loss goes from {losses[0]:.2f} to "
        f"{losses[-1]:.2f} and validation accuracy from {accuracies[0][1]:.0f} % to "
        f"{accuracies[-1][1]:.0f} %. Below, a grid of sixteen tokens and sixty-four channels; "
        f"{exchanged(sources(csp)).float().mean():.0%} of its cells are exchanged by the sort, "
        "always two neighbours together."
    )
    picture.update(figure, metadata={"image/png": {"alt": words}})
    plt.close(figure)


curve = train(csp, live)

# %% [markdown]
# How much of that did training decide? Compare with the map before the first step, and count in how
# many different ways a channel is permuted over the validation digits: the weights are fixed now,
# and still each digit makes permutations of its own. In this sense it is attention.

# %%
moved = (before != sources(csp)).float().mean()
print(f"{moved:.0%} of the values now come from another token than before training")
(calls,) = rm.analysis.trace(csp, [data["validation"]["inputs"]])
for number, call in enumerate(calls):
    found = rm.analysis.permutation_of(call)  # (digits, N, C)
    different = [len(torch.unique(found[:, :, c], dim=0)) for c in range(1, found.shape[2])]
    print(
        f"layer {number}: over {len(found)} digits a channel is permuted in "
        f"{min(different)} to {max(different)} different ways"
    )

# %% [markdown]
# ## Beside softmax attention
#
# The same model with softmax attention, the same first weights outside the mixers, the same
# batches. For one digit, `rm.analysis.matrix_of` measures the attention matrix, here the mean
# over the heads. Of CSP the comparable picture is the share of the channels of a new token that
# come from each old one: the shifts see to it that every token hears of every other, and no
# channel hears of two.

# %%
attention = encoder("softmax")
train(attention)

digit = data["validation"]["inputs"][:1]
(calls,) = rm.analysis.trace(attention, [digit])
weights = rm.analysis.matrix_of(calls[0])[0].mean(0)
shares = nn.functional.one_hot(sources(csp), 16).float().mean(1)

figure, panels = plt.subplots(1, 3, figsize=(6.4, 2.5), width_ratios=(0.8, 1, 1))
panels[0].imshow(as_picture(digit[0]), cmap="gray_r")
panels[0].set(title=f"a {int(data['validation']['labels'][0])}", xticks=[], yticks=[])
for axes, matrix, title in zip(panels[1:], (weights, shares), ("softmax", "CSP"), strict=True):
    axes.imshow(matrix, cmap="cividis", vmin=0, vmax=max(weights.max(), shares.max()))
    axes.set(title=title, xlabel="old token", ylabel="new token", xticks=[0, 15], yticks=[0, 15])
show(
    figure,
    "A digit and two matrices of sixteen by sixteen tokens. Softmax attention puts up to "
    f"{weights.max():.2f} of a row on one token and looks at the same few from everywhere; CSP "
    f"takes at most {shares.max():.2f} of a token's channels from one place, and some from nearly "
    "every place.",
)

# %%
found = {name: accuracy(model, "test") for name, model in (("softmax", attention), ("CSP", csp))}
count = len(data["test"]["labels"])
display(
    Markdown(
        f"Of {count} test digits the model with CSP reads **{found['CSP']:.1f} %** right, the one "
        f"with softmax attention **{found['softmax']:.1f} %**; one digit is "
        f"{100 / count:.2f} points."
    )
)

# %% [markdown]
# That is one run of each, and says that sorting can stand in for attention here, not that either
# is better. How to find out is the subject of [Is it really better?](is-it-really-better.ipynb).
# How to put such a layer into a model that exists is that of [Make my ViT
# faster](faster-vit.ipynb).
#
# More: [CSP](../mixers/csp.md) and [Sliceformer](../mixers/sliceformer.md), which sorts whole
# channels; [causal forms](../causal-permutations.md) of both; [Look inside](../analysis.md).
