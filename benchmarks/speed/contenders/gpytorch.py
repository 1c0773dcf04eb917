"""GPyTorch as installed, eager, with its default settings."""

import gpytorch
import torch
from gpytorch import variational
from gpytorch.models.deep_gps import DeepGP, DeepGPLayer

from benchmarks.speed import cases

__all__ = ["CASES", "STEPS"]

_POINTS = 1000  # predicted together: of all 10,000 it would form the covariance
STEPS = {"S5-8": 1, "S7": 1}  # of a block, where they take seconds


def _kernel(width, batch=()):
    shape = torch.Size(batch)
    rbf = gpytorch.kernels.RBFKernel(ard_num_dims=width, batch_shape=shape)
    return gpytorch.kernels.ScaleKernel(rbf, batch_shape=shape)


class _Process(gpytorch.models.ApproximateGP):
    """Independent or mixed outputs of processes with z in common, whitened."""

    def __init__(self, z, q=variational.CholeskyVariationalDistribution, tasks=None,
                 latents=None, shared=False):  # fmt: skip
        batch = torch.Size([latents or tasks]) if tasks else torch.Size()
        strategy = variational.VariationalStrategy(
            self, z, q(len(z), batch_shape=batch), learn_inducing_locations=True
        )
        if latents:
            strategy = variational.LMCVariationalStrategy(
                strategy, num_tasks=tasks, num_latents=latents, latent_dim=-1
            )
        elif tasks:
            strategy = variational.IndependentMultitaskVariationalStrategy(
                strategy, num_tasks=tasks
            )
        super().__init__(strategy)
        own = () if shared else batch
        self.mean = gpytorch.means.ZeroMean(batch_shape=torch.Size(own))
        self.kernel = _kernel(z.shape[-1], own)

    def forward(self, x):
        """The prior."""
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


def _arrays(data, dtype):
    torch.manual_seed(0)
    torch.set_default_dtype(getattr(torch, dtype))
    x, y, z = map(torch.as_tensor, data)
    return x, y, z


def _steps(case, model, likelihood, objective, x, y):
    modules = torch.nn.ModuleList([model, likelihood])
    adam = torch.optim.Adam(modules.parameters(), lr=1e-2)
    modules.train()

    def block():
        for _ in range(case.steps):
            adam.zero_grad()
            loss = -objective(model(x), y)
            loss.backward()
            adam.step()
        loss.item()

    return block


def fitting(case, data, dtype):
    x, y, z = _arrays(data, dtype)
    if case.kind == "S1":
        model, likelihood = _Process(z), gpytorch.likelihoods.GaussianLikelihood()
    elif case.kind == "S2":
        model, likelihood = _Process(z), gpytorch.likelihoods.BernoulliLikelihood()
        y = y.to(x.dtype)
    elif case.kind == "S3":
        number = cases.NUM_CLASSES
        model = _Process(z, tasks=number, shared=True)
        likelihood = gpytorch.likelihoods.SoftmaxLikelihood(
            num_classes=number, mixing_weights=False
        )
    else:
        model = _Process(z, tasks=cases.NUM_OUTPUTS, latents=cases.NUM_LATENTS)
        likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(
            num_tasks=cases.NUM_OUTPUTS, rank=0, has_task_noise=False
        )
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=case.n)
    return _steps(case, model, likelihood, bound, x, y)


def minibatches(case, data, dtype):
    """``DataLoader`` shuffles all rows."""
    x, y, z = _arrays(data, dtype)
    model, likelihood = _Process(z), gpytorch.likelihoods.GaussianLikelihood()
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=case.n)
    rows = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(rows, batch_size=cases.BATCH, shuffle=True)

    def endless():
        while True:
            yield from loader

    batches = endless()
    modules = torch.nn.ModuleList([model, likelihood])
    adam = torch.optim.Adam(modules.parameters(), lr=1e-2)
    modules.train()

    def block():
        for _ in range(case.steps):
            x, y = next(batches)
            adam.zero_grad()
            loss = -bound(model(x), y)
            loss.backward()
            adam.step()
        loss.item()

    return block


def density(case, data, dtype):
    """The bound of a point: no prior of the hyperparameters, no step."""
    x, y, z = _arrays(data, dtype)
    model = _Process(z, q=variational.DeltaVariationalDistribution)
    likelihood = gpytorch.likelihoods.BernoulliLikelihood()
    model.variational_strategy.inducing_points.requires_grad_(False)
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=case.n)
    return _steps(case, model, likelihood, bound, x, y.to(x.dtype))


class _Layer(DeepGPLayer):
    def __init__(self, z, outputs):
        width = z.shape[-1]
        batch = torch.Size([] if outputs is None else [outputs])
        z = z.expand(*batch, *z.shape).clone()
        strategy = variational.VariationalStrategy(
            self,
            z,
            variational.CholeskyVariationalDistribution(z.shape[-2], batch),
            learn_inducing_locations=True,
        )
        super().__init__(strategy, width, outputs)
        self.mean = gpytorch.means.LinearMean(width, batch_shape=batch)
        self.kernel = _kernel(width, batch)

    def forward(self, x):
        """The prior."""
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


class _Deep(DeepGP):
    def __init__(self, z, width):
        super().__init__()
        self.inner = _Layer(z, width)
        self.outer = _Layer(z[:, :width], None)

    def forward(self, x):
        """The marginals of the last layer."""
        return self.outer(self.inner(x))


def deep(case, data, dtype):
    x, y, z = _arrays(data, dtype)
    model = _Deep(z, case.width)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    bound = gpytorch.mlls.DeepApproximateMLL(
        gpytorch.mlls.VariationalELBO(likelihood, model, num_data=case.n)
    )
    steps = _steps(case, model, likelihood, bound, x, y)

    def block():
        with gpytorch.settings.num_likelihood_samples(1):
            steps()

    return block


def prediction(case, data, dtype):
    x, _, z = _arrays(data, dtype)
    model, likelihood = _Process(z), gpytorch.likelihoods.GaussianLikelihood()
    model.eval(), likelihood.eval()

    def block():
        with torch.no_grad(), gpytorch.settings.skip_posterior_variances(False):
            for _ in range(case.steps):
                for some in x.split(_POINTS):
                    at = likelihood(model(some))
                    _ = at.mean, at.variance

    return block


CASES = {
    "S1": fitting,
    "S2": fitting,
    "S3": fitting,
    "S4b": density,
    "S5": deep,
    "S6": prediction,
    "S7": fitting,
    "S8": minibatches,
}
