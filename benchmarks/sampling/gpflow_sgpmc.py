"""GPflow's SGPMC on problems of this folder, in an environment of its own.

    python -m benchmarks.sampling coal --export coal.npz
    pip install gpflow tensorflow            # elsewhere: it asks for an older NumPy
    python gpflow_sgpmc.py coal.npz --leapfrog-steps 20 --output draws.npz
    python -m benchmarks.sampling coal --beside draws.npz

The same data, inducing inputs, priors and start (v and the hyperparameters of a chain).
HMC of TensorFlow Probability through GPflow's ``SamplingHelper``, as its documentation
shows: one chain, a step size that is adapted in the warm-up, a fixed number of leapfrog
steps, unit masses, float64. Draws of the parameters, the seconds of the call, those of
the sampling phase by itself and the number of gradients.
"""

import argparse
import time

import gpflow
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp


def model_of(held):
    """SGPMC with the inputs and priors of the problem, at its start."""
    gamma = tfp.distributions.Gamma
    kernel = gpflow.kernels.SquaredExponential()
    priors = dict(zip(("variance", "lengthscale"), held["priors"], strict=True))
    for name, parameter in (
        ("variance", kernel.variance),
        ("lengthscale", kernel.lengthscales),
    ):
        parameter.assign(held[name])
        shape, rate = (gpflow.utilities.to_default_float(p) for p in priors[name])
        parameter.prior = gamma(shape, rate)
    if held["likelihood"] == "poisson":
        likelihood = gpflow.likelihoods.Poisson(binsize=1.0)
    else:
        likelihood = gpflow.likelihoods.Bernoulli()
    data = (held["x"].astype(float), held["y"].astype(float)[:, None])
    model = gpflow.models.SGPMC(
        data, kernel, likelihood, inducing_variable=held["z"].astype(float)
    )
    gpflow.set_trainable(model.inducing_variable, False)
    model.V.assign(held["v"].astype(float)[:, None])
    return model


def parse():
    """The options."""
    parser = argparse.ArgumentParser(description="GPflow's SGPMC, one chain.")
    parser.add_argument("problem")
    parser.add_argument("--leapfrog-steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--target-accept", type=float, default=0.75)
    parser.add_argument("--jit", action="store_true", help="compile with XLA")
    parser.add_argument("--output", default="gpflow_draws.npz")
    return parser.parse_args()


def main():
    options = parse()
    model = model_of(np.load(options.problem))
    tf.random.set_seed(0)
    helper = gpflow.optimizers.SamplingHelper(
        model.log_posterior_density, model.trainable_parameters
    )
    float64 = gpflow.utilities.to_default_float
    hmc = tfp.mcmc.HamiltonianMonteCarlo(
        target_log_prob_fn=helper.target_log_prob_fn,
        num_leapfrog_steps=options.leapfrog_steps,
        step_size=float64(0.01),
    )
    adaptive = tfp.mcmc.SimpleStepSizeAdaptation(
        hmc,
        num_adaptation_steps=int(0.8 * options.warmup),
        target_accept_prob=float64(options.target_accept),
        adaptation_rate=0.1,
    )

    @tf.function(jit_compile=options.jit, reduce_retracing=True)
    def chain(state, results, number):
        return tfp.mcmc.sample_chain(
            num_results=number,
            current_state=state,
            previous_kernel_results=results,
            kernel=adaptive,
            trace_fn=lambda _, r: (r.inner_results.is_accepted, r.new_step_size),
            return_final_kernel_results=True,
        )

    called = time.perf_counter()
    state = [tf.identity(s) for s in helper.current_state]
    results = adaptive.bootstrap_results(state)
    first = chain(state, results, options.warmup)
    state, results = [s[-1] for s in first.all_states], first.final_kernel_results
    chain(state, results, options.samples)  # traces
    call_seconds = time.perf_counter() - called
    began = time.perf_counter()
    kept = chain(state, results, options.samples)
    accepted, step_size = (np.asarray(t) for t in kept.trace)
    seconds = time.perf_counter() - began
    values = helper.convert_to_constrained_values(kept.all_states)
    paths = gpflow.utilities.parameter_dict(model)
    names = {
        next(path for path, held in paths.items() if held is parameter): value
        for parameter, value in zip(model.trainable_parameters, values, strict=True)
    }
    gradients = options.samples * options.leapfrog_steps
    print(
        f"{seconds:.2f} s, {seconds / gradients * 1e6:.0f} µs a gradient, accepted "
        f"{accepted.mean():.2f}, step size {step_size[-1]:.4f}"
    )
    np.savez(
        options.output,
        v=np.asarray(names[".V"])[..., 0],
        variance=np.asarray(names[".kernel.variance"]),
        lengthscale=np.asarray(names[".kernel.lengthscales"]),
        seconds=seconds,
        call_seconds=call_seconds,
        num_gradients=gradients,
        n_steps=np.full(options.samples, options.leapfrog_steps),
    )


if __name__ == "__main__":
    main()
