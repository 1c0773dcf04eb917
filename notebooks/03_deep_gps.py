# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Deep Gaussian processes
#
# A function with a steep step has no single lengthscale. A stationary process has only
# one, and either blurs the step or overshoots next to it; a process of a process can
# warp the input first (Salimbeni and Deisenroth 2017). Here models with one, two and
# three layers are fitted to the same data; then two layers are sampled by Hamiltonian
# Monte Carlo.

# %%
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import random

import svgp_ppl as gp

numpyro.enable_x64()
num_steps = 4000
num_draws = max(20, num_steps // 16)


def steep(x):
    return np.tanh(20 * x[:, 0]) + 0.3 * np.sin(4 * x[:, 0])


rng = np.random.default_rng(0)
x = np.sort(rng.uniform(-1.0, 1.0, 120))[:, None]
y = steep(x) + 0.1 * rng.normal(size=120)
x_test = rng.uniform(-1.0, 1.0, 400)[:, None]
y_test = steep(x_test) + 0.1 * rng.normal(size=400)

# %% [markdown]
# ## The model
#
# `gp.deep.layers` gives the initial inducing inputs of each layer, its fixed linear
# mean (the identity here) and its width. `gp.deep.compose` writes the sites: a process
# for each layer, and for each layer but the last the draw that is the input of the next
# one. The kernel parameters are latent sites with priors, so the same model can be
# sampled.


# %%
def model_of(num_layers):
    layers = gp.deep.layers(x, num_layers, 20)

    def model(x, y=None):
        variance = numpyro.sample(
            "variance", dist.LogNormal(0.0, 1.0).expand([num_layers]).to_event(1)
        )
        lengthscale = numpyro.sample(
            "lengthscale", dist.LogNormal(-0.5, 1.0).expand([num_layers]).to_event(1)
        )
        noise = numpyro.sample("noise", dist.LogNormal(-2.0, 1.0))
        kernels = [
            gp.kernels.RBF(variance[i], lengthscale[i]) for i in range(num_layers)
        ]
        f = gp.deep.compose("f", layers, kernels, x)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(noise), f, obs=y)

    return model


models = {num_layers: model_of(num_layers) for num_layers in (1, 2, 3)}
optimizer = optax.adam(optax.cosine_decay_schedule(2e-2, num_steps))
fits = {
    num_layers: gp.fit(
        random.key(0),
        model,
        gp.AutoDeep(model),
        x,
        y,
        optimizer=optimizer,
        num_steps=num_steps,
        progress=False,
    )
    for num_layers, model in models.items()
}
print("layers      bound   test log density      RMSE")
for num_layers, fit in fits.items():
    at_test = gp.predict(models[num_layers], fit, x_test, key=random.key(1))["y"]
    bound = -float(np.mean(fit.losses[-100:]))
    density = float(np.mean(at_test.log_prob(y_test)))
    error = float(np.sqrt(np.mean((at_test.mean - y_test) ** 2)))
    print(f"{num_layers:6d}{bound:11.1f}{density:19.3f}{error:10.3f}")

# %% [markdown]
# ## Functions, not points
#
# `draw_functions` draws sample paths, jointly through the layers. `sample_latent` would
# draw the value at each input separately: right for a quantile, but not a function.

# %%
line = np.linspace(-1.2, 1.2, 161)[:, None]
figure, axes = plt.subplots(1, 3, figsize=(9, 2.8), sharey=True, layout="constrained")
for ax, (num_layers, fit) in zip(axes, fits.items()):
    functions = gp.draw_functions(
        random.key(2), models[num_layers], fit, line, num_draws=20
    )["y"]
    ax.plot(line, functions.T, color="C0", linewidth=0.6, alpha=0.6)
    ax.plot(x, y, "k.", markersize=3)
    ax.set(title=f"{num_layers} layer{'s' * (num_layers > 1)}", xlabel="x")
axes[0].set_ylabel("f")
figure.suptitle("twenty posterior draws of f, and the data")
plt.show()

# %% [markdown]
# ## What the layers do
#
# The figure shows the inner layer of the two-layer model, and the outer one as a
# function of its input. Any process of a fitted model can be inspected: write a model
# with the same processes and other `observe` sites, and predict with the same
# parameters.


# %%
layers = gp.deep.layers(x, 2, 20)


def layer_view(x, h):
    variance = numpyro.sample("variance", dist.LogNormal().expand([2]).to_event(1))
    length = numpyro.sample("lengthscale", dist.LogNormal().expand([2]).to_event(1))
    numpyro.sample("noise", dist.LogNormal())
    for number, inputs in enumerate((x, h)):
        layer = layers[number]
        process = gp.sparse_gp(
            f"f_{number}",
            gp.kernels.RBF(variance[number], length[number]),
            numpyro.param(f"f_{number}_z", layer.z),
            mean=layer.mean,
            num_outputs=layer.width,
        )
        latent = process(inputs)[..., 0] if layer.width else process(inputs)
        gp.observe(f"layer {number}", gp.likelihoods.Gaussian(0.1), latent)


h_line = np.linspace(-2.5, 2.5, 161)[:, None]
views = gp.predict(layer_view, fits[2], line, h_line)
figure, axes = plt.subplots(1, 2, figsize=(7, 2.8), layout="constrained")
labels = {"layer 0": ("x", "h"), "layer 1": ("h", "f")}
for ax, inputs, (site, (below, above)) in zip(axes, (line, h_line), labels.items()):
    mean = np.asarray(views[site].latent_mean)
    sd = np.sqrt(np.asarray(views[site].latent_variance))
    gp.plots.function_band(inputs, mean - 2 * sd, mean, mean + 2 * sd, ax=ax)
    ax.set(xlabel=below, ylabel=above, title=site)
figure.suptitle("the two layers: posterior mean ± 2 sd")
plt.show()

# %% [markdown]
# ## The same model under a sampler
#
# Only the call changes. The log likelihood of a deep model contains an integral over
# the draws of the inner layer. A sampler needs a deterministic function, so the
# standard normals behind those draws are fixed for the run, `num_noise_draws` of them
# for each datum, and the log likelihood is averaged over them. The chains start from
# the fit.

# %%
draws = gp.sample(
    random.key(3),
    models[2],
    x,
    y,
    sampler=gp.mcmc.NUTS(max_num_doublings=6),
    init=fits[2],
    num_noise_draws=2,
    num_chains=2,
    num_warmup=num_draws,
    num_samples=num_draws,
    progress=False,
)
gp.diagnostics.summary(draws, ["variance", "lengthscale", "noise"])

# %%
figure, axes = plt.subplots(1, 2, figsize=(7, 2.8), sharey=True, layout="constrained")
for ax, (name, held) in zip(axes, {"fit": fits[2], "HMC draws": draws}.items()):
    functions = gp.draw_functions(random.key(4), models[2], held, line, num_draws=200)
    low, middle, high = np.quantile(functions["y"], [0.05, 0.5, 0.95], axis=0)
    gp.plots.function_band(line, low, middle, high, ax=ax)
    ax.plot(x, y, "k.", markersize=3)
    ax.set(title=name, xlabel="x")
axes[0].set_ylabel("f")
figure.suptitle("two layers: median and 90 % band of f")
plt.show()

at_test = gp.predict(models[2], draws, x_test, key=random.key(5))["y"]
print(
    "test log density of the draws:", round(float(np.mean(at_test.log_prob(y_test))), 3)
)

# %% [markdown]
# The functions agree, but do not trust the chains beyond that: $\hat R$ far from one
# and effective sample sizes of a few draws show that the two chains have not explored
# the same posterior of the lengthscales. A layer can be flipped, stretched or shifted
# if the next one undoes it, and trajectories were limited to 63 steps here to keep the
# notebook short. Judge a deep model by its predictions, and give its chains time.
#
# The published experiments are in [deep models](../docs/deep-models.md).
