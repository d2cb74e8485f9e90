# %% [markdown]
# # Is it really better?
#
# One run of each of two models always has a winner. This notebook compares mixers on real digits,
# finds how much of a difference is luck, and shows how to read the tables of `rm.compare`, step by
# step and with the arithmetic in sight. It needs `pip install "rifflemix[notebooks]" jupyterlab`,
# no GPU and no download.

# %%
import os
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler, which counts memory, is silent

import matplotlib.pyplot as plt
from IPython.display import Markdown, display

import rifflemix as rm

plt.rcParams.update({"figure.dpi": 110, "font.size": 10, "figure.constrained_layout.use": True})
BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"  # Okabe and Ito
COLOURS = {"softmax": BLUE, "csp": ORANGE, "tssa": GREEN}
BUDGET = {
    "max_steps": 60,
    "lr": 1e-2,
    "batch_size": 32,
    "dim": 32,
    "num_layers": 1,
    "threads": 1,
    "task_options": {"patch_size": 2},
}


def show(figure, words):
    """The picture, and what it shows for those who cannot see it."""
    display(figure, metadata={"image/png": {"alt": words}})
    plt.close(figure)


# %% [markdown]
# ## One run each
#
# Same backbone, same first weights outside the mixer, same batches, same budget. So far this is
# fair.

# %%
single = rm.compare("digits", ["softmax", "csp", "tssa"], seeds=1, **BUDGET)
runs = single.to_frame("run")
best = runs.loc[runs["test_accuracy"].idxmax()]
worst = runs.loc[runs["test_accuracy"].idxmin()]
print((100 * runs.set_index("mixer")["test_accuracy"]).round(1).to_string())
display(
    Markdown(
        f"It is tempting to write: *{best['mixer']} beats {worst['mixer']} by "
        f"{100 * (best['test_accuracy'] - worst['test_accuracy']):.1f} points.* Is it true?"
    )
)

# %% [markdown]
# ## The same again, with other seeds
#
# A seed decides the first weights and the order of the batches. Nobody would call one seed better
# than another, so whatever a mixer gains or loses from seed to seed is noise.

# %%
SEEDS = 6
folder = TemporaryDirectory()
result = rm.compare(
    "digits", ["softmax", "csp", "tssa"], seeds=SEEDS, out=Path(folder.name) / "runs", **BUDGET
)
runs = result.to_frame("run")
scores = {
    name: dict(zip(part["seed"], 100 * part["test_accuracy"], strict=True))
    for name, part in runs.groupby("mixer", sort=False)
}

figure, axes = plt.subplots(figsize=(6.4, 2.8))
for row, (name, found) in enumerate(scores.items()):
    axes.plot(list(found.values()), [row] * SEEDS, "o", color=COLOURS[name], alpha=0.7)
    axes.plot(statistics.fmean(found.values()), row, "|", color="black", markersize=22)
    axes.annotate(" seed 0", (found[0], row), (0, 9), textcoords="offset points", ha="center")
axes.set(yticks=range(3), yticklabels=list(scores), xlabel="test accuracy, %", ylim=(-0.6, 2.6))
axes.invert_yaxis()
axes.spines[["top", "right"]].set_visible(False)
words = "A dot for each run, a bar for the mean. " + "; ".join(
    f"{name} from {min(found.values()):.1f} % to {max(found.values()):.1f} %, "
    f"mean {statistics.fmean(found.values()):.1f} %"
    for name, found in scores.items()
)
show(figure, words)

# %% [markdown]
# ## How large is noise? Compare a thing with itself
#
# Take the runs of softmax attention alone, half of the seeds against the other half. The truth is
# known: there is no difference. Every one that appears is what luck can do.

# %%
found = list(scores["softmax"].values())
half = SEEDS // 2
luck = statistics.fmean(found[:half]) - statistics.fmean(found[half:])
largest = max(abs(a - b) for a in found for b in found)
display(
    Markdown(
        f"Softmax attention differs from itself by **{abs(luck):.1f}** points with {half} seeds on "
        f"either side, and by up to **{largest:.1f}** points with one."
    )
)

# %% [markdown]
# ## Pair by seed
#
# With the same seed all mixers had the same batches in the same order, so that part of the luck
# is shared. Subtract seed by seed, and look at the differences: their spread is what stands
# between you and the truth.

# %%
differences = {
    name: [scores[name][seed] - scores["softmax"][seed] for seed in range(SEEDS)]
    for name in ("csp", "tssa")
}
for name, values in differences.items():
    paired = statistics.stdev(values)
    alone = statistics.stdev(scores[name].values()), statistics.stdev(scores["softmax"].values())
    print(
        f"{name} - softmax, seed by seed: {', '.join(f'{v:+.1f}' for v in values)}\n"
        f"    standard deviation {paired:.2f}; of unrelated runs it would be about "
        f"{(alone[0] ** 2 + alone[1] ** 2) ** 0.5:.2f}"
    )

# %% [markdown]
# If the first number is the smaller one, pairing helped. It need not: two mixers can take the same
# batches differently.
#
# ## The test set is noise as well
#
# Other test digits would give other accuracies, for *every* seed alike, and no number of seeds
# makes this go away. With *M* digits and a share *p* of right answers the standard error is √(p
# (1 − p) / M).

# %%
count = result.results["task"]["sizes"]["test"]
errors = {}
for name, found in scores.items():
    share = statistics.fmean(found.values()) / 100
    errors[name] = 100 * (share * (1 - share) / count) ** 0.5
    over_seeds = statistics.stdev(found.values()) / SEEDS**0.5
    print(
        f"{name:8s} error of the mean over seeds {over_seeds:.2f}, of {count} test digits "
        f"{errors[name]:.2f} points"
    )

# %% [markdown]
# Both errors add up, as squares. A difference of two mixers has the error of each; then it is the
# mean difference over its error that says how surprising it is. Around two is worth a second look,
# around one is what luck does.

# %%
for name, values in differences.items():
    mean = statistics.fmean(values)
    of_seeds = statistics.variance(values) / SEEDS
    of_digits = errors[name] ** 2 + errors["softmax"] ** 2
    error = (of_seeds + of_digits) ** 0.5
    print(f"{name} - softmax: {mean:+.2f} points, error {error:.2f}, ratio {mean / error:+.1f}")

# %% [markdown]
# ## What the table says
#
# `rm.compare` does this arithmetic for you, with Student's t in the place of "around two", since
# few seeds know little about their own spread. A notebook shows table, notes and plot of a
# comparison; in its folder (`out=`) the same stands in `table.md` and `report.html`, followed by
# the table that this notebook is about: differences from softmax attention with their 95 %
# intervals.

# %%
table = (result.folder / "table.md").read_text(encoding="utf-8")
folder.cleanup()
display(Markdown(table.partition("\n\n")[2].replace("\n## ", "\n### ")))

# %% [markdown]
# Read it from the bottom.
#
# 1. **The interval first.** If it holds zero, nothing is shown, whatever the means say. If not, its
#    nearer end is what you may claim.
# 2. **Then *p*.** Three mixers are two differences, and whoever looks often enough finds something:
#    *p* is corrected for the number of rows (Holm). Below 0.05 counts as shown.
# 3. **Then bold.** Bold means that no other mixer is significantly better, by the same test: two
#    bold mixers are a draw.
# 4. **Only then the means.**
# 5. **And the other columns.** Speed, memory and parameters have winners of their own.
#
# ## How many seeds?
#
# Take two of the runs above, then three, and so on. The error that seeds cause falls with their
# number; the one of the test set stays, and beyond that more seeds buy little.

# %%
figure, axes = plt.subplots(figsize=(6.4, 2.8))
numbers = range(2, SEEDS + 1)
told = []
for name, values in differences.items():
    spread = [(statistics.variance(values[:n]) / n) ** 0.5 for n in numbers]
    floor = (errors[name] ** 2 + errors["softmax"] ** 2) ** 0.5
    axes.plot(numbers, spread, "o-", color=COLOURS[name], label=f"{name}: seeds")
    axes.axhline(floor, color=COLOURS[name], linestyle=":", label=f"{name}: test digits")
    told.append(f"{name} {spread[0]:.2f} with 2 seeds, {spread[-1]:.2f} with {SEEDS}, "
                f"test digits {floor:.2f}")  # fmt: skip
axes.set(xlabel="seeds", ylabel="error, points", ylim=(0, None), xticks=list(numbers))
axes.spines[["top", "right"]].set_visible(False)
axes.legend(fontsize=8)
show(figure, "Error of the difference from softmax attention: " + "; ".join(told))

# %% [markdown]
# ## Was it fair to both?
#
# Noise is one trap; a learning rate that suits one of the two is another. Give several and every
# mixer tries each with every seed. The validation split chooses, and only what it chose is tested.

# %%
tuned = rm.compare(
    "digits", ["softmax", "csp"], seeds=2, **BUDGET | {"lr": [5e-3, 2e-2], "max_steps": 50}
)
trials = tuned.to_frame("trial").groupby(["mixer", "lr"], sort=False)["validation_accuracy"]
print("validation accuracy, mean over seeds, %")
print((100 * trials.mean()).round(1).unstack().to_string())
chosen = {mixer["name"]: mixer["tuning"]["chosen"] for mixer in tuned.results["mixers"]}
fixed = trials.mean().xs(5e-3, level="lr") * 100
at_best = trials.mean().groupby("mixer").max() * 100
display(
    Markdown(
        f"At one rate for all csp is {fixed['csp'] - fixed['softmax']:+.1f} points from softmax on "
        f"the validation split; with the rate that suits each, "
        f"{at_best['csp'] - at_best['softmax']:+.1f}."
    )
)

# %% [markdown]
# ## Before you say "better"
#
# - At least three seeds, better more; the same for all.
# - A difference with its interval, not two means; corrected, if there were several.
# - A test set that is large enough for the difference you care about, evaluated once.
# - The same tuning for all, and its cost.
# - What it holds for: this task, this length, this budget. Here training was short; with more steps
#   the order can turn.
#
# More: [Compare fairly](../comparing.md), [your own data](../your-data.md), and
# [results](../results.md) with larger budgets.
