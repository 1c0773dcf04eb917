"""GPyTorch's ``BayesianGPLVM``, in an environment of its own.

    pip install gpytorch scikit-learn
    python benchmarks/comparisons/in_gpytorch.py --seeds 3

Kernel, inducing inputs and noise are shared by the columns, as in ours; the
hyperparameters have no priors and no spread. An entry that is hidden has no term in the
bound. All rows in every step, one draw of the latent inputs, float64.
"""

import argparse
import time

import gpytorch
import torch
from gpytorch.models.gplvm.latent_variable import VariationalLatentVariable
from tables import keep
from wines import NUM_DRAWS, NUM_LATENT, NUM_STEPS, data, scores, start

torch.set_default_dtype(torch.float64)


class Model(gpytorch.models.gplvm.bayesian_gplvm.BayesianGPLVM):
    """The processes of all columns, and q(x)."""

    def __init__(self, x_start, z_start, num_columns):
        num_rows = len(x_start)
        q_u = gpytorch.variational.CholeskyVariationalDistribution(
            len(z_start), batch_shape=torch.Size([num_columns])
        )
        strategy = gpytorch.variational.VariationalStrategy(
            self, torch.as_tensor(z_start), q_u, learn_inducing_locations=True
        )
        zeros = torch.zeros(num_rows, NUM_LATENT)
        latent = VariationalLatentVariable(
            num_rows,
            num_columns,
            NUM_LATENT,
            torch.nn.Parameter(torch.as_tensor(x_start)),
            gpytorch.priors.NormalPrior(zeros, torch.ones_like(zeros)),
        )
        super().__init__(latent, strategy)
        self.mean_module = gpytorch.means.ZeroMean()
        kernel = gpytorch.kernels.RBFKernel(ard_num_dims=NUM_LATENT)
        kernel.lengthscale = 2.0
        self.covar_module = gpytorch.kernels.ScaleKernel(kernel)
        # The spread of our start.
        with torch.no_grad():
            latent.q_log_sigma.fill_(_inverse_softplus(0.1))

    def forward(self, x):
        """The prior at inputs."""
        return gpytorch.distributions.MultivariateNormal(
            self.mean_module(x), self.covar_module(x)
        )


def _inverse_softplus(value):
    return float(torch.log(torch.expm1(torch.tensor(value))))


def run(seed):
    """The scores of one fit."""
    torch.manual_seed(seed)
    y, known, _ = data(seed)
    x_start, z_start = start(y, known)
    begun = time.perf_counter()
    model = Model(x_start, z_start, y.shape[1])
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    likelihood.noise = 0.4
    columns, is_known = torch.as_tensor(y.T), torch.as_tensor(known.T)
    parameters = [*model.parameters(), *likelihood.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, NUM_STEPS)
    model.train()
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        x = model.sample_latent_variable()
        expected = likelihood.expected_log_prob(columns, model(x))
        bound = (expected * is_known).sum()
        bound = bound - model.variational_strategy.kl_divergence().sum()
        # GPyTorch divides this loss by rows times columns.
        kl_x = sum(loss.loss() for loss in model.added_loss_terms())
        loss = kl_x.sum() * y.size - bound
        loss.backward()
        optimizer.step()
        schedule.step()
    seconds = time.perf_counter() - begun
    model.eval()
    with torch.no_grad():
        at = [model(model.sample_latent_variable()) for _ in range(NUM_DRAWS)]
        means = torch.stack([one.mean for one in at])
        variances = torch.stack([one.variance for one in at])
        variance = variances.mean(0) + means.var(0, correction=0) + likelihood.noise
    lengthscale = model.covar_module.base_kernel.lengthscale.detach().numpy()[0]
    x = model.X.q_mu.detach().numpy()
    mean, variance = means.mean(0).numpy().T, variance.numpy().T
    case = "GPyTorch's `BayesianGPLVM`"
    return scores(case, seed, mean, variance, x, lengthscale, seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="GPyTorch's BayesianGPLVM.")
    parser.add_argument("--seeds", type=int, default=3)
    keep("in_gpytorch", [run(seed) for seed in range(parser.parse_args().seeds)])
