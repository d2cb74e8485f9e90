# %% [markdown]
# # Make my ViT faster
#
# You have a vision transformer and long inputs. This notebook takes one of timm, trains it on real
# digits, asks what other mixers would cost *in this model* and where softmax attention is the
# better choice, replaces the attention, and gets the accuracy back. Nothing is downloaded; it needs
# `pip install "rifflemix[notebooks]" jupyterlab` and a minute or two of a CPU.

# %%
import copy
import io
import os

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler, which counts memory, is silent

import matplotlib.pyplot as plt
import timm
import torch
from IPython.display import Image, Markdown, display
from torch import nn

import rifflemix as rm

torch.manual_seed(0)
plt.rcParams.update({"figure.dpi": 110, "font.size": 10, "figure.constrained_layout.use": True})
BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#999999"  # Okabe and Ito

# %% [markdown]
# ## The model
#
# A ViT of timm with fewer channels and layers, so that it can be trained here and now. Two choices
# help every swap: let the classifier read the *mean* of the tokens and leave out the class token,
# which a sort would mix with the others. `dynamic_img_size` takes images of any size.

# %%
vit = timm.create_model(
    "vit_tiny_patch16_224",
    pretrained=False,
    img_size=8,
    patch_size=2,  # 16 tokens for 8 x 8 pixels
    in_chans=1,
    num_classes=10,
    embed_dim=64,
    depth=2,
    num_heads=4,
    class_token=False,
    global_pool="avg",
    dynamic_img_size=True,
)
print(f"{sum(p.numel() for p in vit.parameters()):,} parameters")

# %%
task = rm.tasks.load_task("digits", patch_size=1)
data = {}
for name in ("train", "validation", "test"):
    split = task.split(name)
    data[name] = task.collate([split[i] for i in range(len(split))])
    pixels = data[name]["inputs"].float() / data[name]["inputs"].max()
    data[name]["inputs"] = 2 * pixels.reshape(-1, 1, 8, 8) - 1  # from tokens back to images
print({name: tuple(part["inputs"].shape) for name, part in data.items()})


def batches(steps, seed, size=32):
    """So many random batches of training images and labels, the same for the same seed."""
    draws = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(len(data["train"]["labels"]), (size,), generator=draws)
        yield data["train"]["inputs"][rows], data["train"]["labels"][rows]


def train(model, steps, seed, lr):
    """The model after so many steps of AdamW, the rate falling to zero."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    model.train()
    for images, labels in batches(steps, seed):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        schedule.step()
    return model


@torch.no_grad()
def accuracy(model, split="validation"):
    """In percent."""
    found = model.eval()(data[split]["inputs"]).argmax(-1)
    return 100 * (found == data[split]["labels"]).float().mean().item()


STEPS, MORE = 400, 100
train(vit, STEPS, seed=0, lr=3e-3)
print(f"validation accuracy {accuracy(vit):.1f} %")

# %% [markdown]
# ## What would be replaced?
#
# `dry_run=True` changes nothing and says what would change: which layers, which not and why, and
# what happens to parameters and multiply-accumulates.

# %%
print(rm.replace_attention(copy.deepcopy(vit), "csp", dry_run=True))

# %% [markdown]
# ## What would it cost?
#
# Before any training, measure. `rm.measure_swap` puts each mixer into a copy of *your* model and
# times it at several lengths, in evaluation and in training, with the memory that it takes. A mixer
# that is cheap in theory can lose at your length: read the sentences below the table, which say
# where the original wins.

# %%
SIDES = {16: 8, 256: 32, 1024: 64, 2304: 96}


def images(tokens):
    """A random image that makes so many tokens."""
    return torch.rand(1, 1, SIDES[tokens], SIDES[tokens])


cost = rm.measure_swap(
    vit, ["csp", "tssa", "sinkhorn"], images, list(SIDES), repeats=3, max_seconds=1
)
display(Markdown(cost.table()))

# %%
picture = io.BytesIO(cost.plot())
longest = max(SIDES)
times = "; ".join(
    f"{name} {cost.costs(name, 'training')[longest] * 1e3:.0f} ms" for name in cost.mixers
)
words = f"Time against tokens, evaluation and training. A training step at N = {longest}: {times}."
display(Image(picture.getvalue(), width=704), metadata={"image/png": {"alt": words}})

# %%
lines = []
for name in cost.mixers[1:]:
    ratios = {
        n: cost.costs("original", "training")[n] / cost.costs(name, "training")[n] for n in SIDES
    }
    worst, best = min(ratios, key=ratios.get), max(ratios, key=ratios.get)
    lines.append(
        f"- **{name}** trains at {ratios[worst]:.2f} times the speed of softmax attention with "
        f"{worst:,} tokens and at {ratios[best]:.2f} times with {best:,}."
    )
display(Markdown("\n".join(lines)))

# %% [markdown]
# The whole model is timed, not the layer: embedding and MLPs cost the same whatever mixes the
# tokens, and at short inputs they are most of it. If your inputs are as short as those where the
# ratio is near one, stop here: there is nothing to win.
#
# ## Swap, and see what broke
#
# CSP computes something else than attention. `replace_attention` copies what it can, the value and
# output maps; the accuracy is gone all the same.

# %%
MIXER = "csp"
swapped = copy.deepcopy(vit)
report = rm.replace_attention(swapped, MIXER)
results = {"as trained, with attention": accuracy(vit), f"{MIXER}, just swapped": accuracy(swapped)}
print(f"{len(report.replaced)} layers replaced, {len(report.skipped)} skipped")
print({name: f"{value:.1f} %" for name, value in results.items()})

# %% [markdown]
# ## Get the accuracy back
#
# There are two ways, and they can be combined.
#
# - **Distil**: each new mixer learns to put out what the attention in its place did. It needs the
#   old model and inputs, no labels.
# - **Fine-tune**: train the whole model on with labels.
#
# To be fair, every way gets the same number of steps, and the original model, too, is trained on
# for as long: without that, the swap would get the credit for the extra training.

# %%
distilled = copy.deepcopy(swapped)
losses = rm.distil(distilled, vit, (inputs for inputs, _ in batches(MORE, seed=1)))
results[f"{MIXER}, {MORE} steps of distil"] = accuracy(distilled)

figure, axes = plt.subplots(figsize=(6.4, 2.8))
for (name, values), colour in zip(losses.items(), (BLUE, ORANGE), strict=True):
    axes.plot(values, color=colour, label=name)
axes.set(xlabel="step", ylabel="relative error", ylim=(0, None))
axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
axes.legend(title="0: the attention itself; 1: zeros")
words = "Relative error of each layer's new mixer while it distils: " + "; ".join(
    f"{name} from {values[0]:.2f} to {values[-1]:.2f}" for name, values in losses.items()
)
display(figure, metadata={"image/png": {"alt": words}})
plt.close(figure)

# %% [markdown]
# The error says how well this mixer *can* imitate this attention, which permutations hardly can.
# Where it stays high, labels must do the rest.

# %%
both = train(copy.deepcopy(distilled), MORE, seed=2, lr=2e-3)
tuned = train(copy.deepcopy(swapped), 2 * MORE, seed=2, lr=2e-3)
control = train(copy.deepcopy(vit), 2 * MORE, seed=2, lr=2e-3)
hybrid = copy.deepcopy(vit)
rm.replace_attention(hybrid, MIXER, layers=[0])  # softmax stays in the last layer
train(hybrid, 2 * MORE, seed=2, lr=2e-3)

finished = {
    f"with attention, {2 * MORE} more steps": control,
    f"{MIXER}, {MORE} of distil, {MORE} of fine-tuning": both,
    f"{MIXER}, {2 * MORE} of fine-tuning": tuned,
    f"{MIXER}, attention in the last layer, {2 * MORE} of fine-tuning": hybrid,
}
results |= {name: accuracy(model) for name, model in finished.items()}

figure, axes = plt.subplots(figsize=(6.4, 2.8))
colours = [GREY if "with attention" in name else BLUE for name in results]
bars = axes.barh(list(results), list(results.values()), color=colours)
axes.bar_label(bars, fmt="%.1f", padding=3)
axes.set(xlim=(0, 112), xlabel="validation accuracy, %")
axes.invert_yaxis()
axes.spines[["top", "right"]].set_visible(False)
words = "Bars of validation accuracy. " + "; ".join(
    f"{name}: {value:.1f} %" for name, value in results.items()
)
display(figure, metadata={"image/png": {"alt": words}})
plt.close(figure)

# %% [markdown]
# ## Decide
#
# The validation split chose among the swapped models; the test split is evaluated once, for that
# one and for attention with as much training.

# %%
ways = [name for name in finished if name.startswith(MIXER)]
chosen = max(ways, key=results.get)
ours, theirs = accuracy(finished[chosen], "test"), accuracy(control, "test")
count = len(data["test"]["labels"])
noise = sum(p * (100 - p) / count for p in (ours, theirs)) ** 0.5

ratios = [
    cost.costs("original", "training")[n] / cost.costs(MIXER, "training")[n]
    for n in (min(SIDES), longest)
]
display(
    Markdown(
        f"Chosen: *{chosen}*. Test accuracy **{ours:.1f} %**, attention with as much training "
        f"**{theirs:.1f} %**; the {count} test images alone make the difference uncertain by about "
        f"{noise:.1f} points. With {MIXER} in all layers a training step goes "
        f"**{ratios[0]:.2f}** times as fast at {min(SIDES)} tokens and **{ratios[1]:.2f}** times "
        f"at {longest:,}."
    )
)

# %% [markdown]
# Ask yourself before you ship it:
#
# - Is the ratio at *your* length, on *your* machine, worth a training run? Softmax attention that
#   is not replaced needs none.
# - Is the difference in accuracy more than the noise? One run cannot say;
#   [Is it really better?](is-it-really-better.ipynb) does.
# - Would a hybrid do? Attention that stays in a layer or two costs little at short inputs, and
#   much at long ones.
#
# The swapped model is saved with `rm.save_swapped` and undone with `rm.restore_attention`:

# %%
rm.restore_attention(swapped)
assert torch.equal(swapped.eval()(data["test"]["inputs"][:4]), vit(data["test"]["inputs"][:4]))

# %% [markdown]
# More: [Swap an attention](../surgery.md) in transformers and others, with masks, causal models
# and saving; [which mixer for me](../choose.md); [speed and memory](../performance.md) of single
# layers.
