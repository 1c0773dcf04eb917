"""Mistakes are answered in words: what was expected, what came, what to do."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr
from jax import random
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from scipy.sparse import csr_array

import svgp_ppl as gp
from svgp_ppl.diagnostics.kept import Kept
from svgp_ppl.handlers import replay_distributions

pytestmark = pytest.mark.usefixtures("as_users_call")

X = np.linspace(0.0, 1.0, 6)[:, None]
Z = X[::2]
KERNEL = gp.kernels.RBF(1.0, 1.0)
COUNTS = np.array([0, 2, 1, 4, 0, 3])


def refused(match, function, *args, **options):
    """A ValueError with this message, where the function runs as a model."""
    run = handlers.trace(handlers.seed(function, random.key(0)))
    with pytest.raises(ValueError, match=match):
        run.get_trace(*args, **options)


def process(name="f", z=Z, **options):
    return gp.sparse_gp(name, KERNEL, z, **options)


def observed(y, likelihood=None, *, size=6, num_outputs=None, **options):
    likelihood = gp.likelihoods.Poisson() if likelihood is None else likelihood
    latent = process(num_outputs=num_outputs)(X)
    with numpyro.plate("data", size):
        gp.observe("y", likelihood, latent, obs=y, **options)


# ------------------------------------------------------------------------ inputs


@pytest.mark.parametrize(
    "x, match",
    [
        (
            X[:, 0],
            r"must have shape \[N, D\] and have \(6,\)\. For one column add \[:, N",
        ),
        (X[None], r"must have shape \[N, D\] and have \(1, 6, 1\)"),
        (0.5, r"must have shape \[N, D\] and have \(\)"),
        (X[:0], r"are empty: their shape is \(0, 1\)"),
        (np.where(X > 0.5, np.nan, X), r"must be finite.*first at index \(3, 0\)"),
        (np.where(X > 0.9, np.inf, X), r"must be finite.*index \(5, 0\).*impute"),
        (
            np.array([["a"], ["b"]]),
            r"must be real numbers and are of dtype <U1.*Code text as numbers",
        ),
        (
            X.astype(object),
            r"must be .* of dtype object.*np.asarray\(..., dtype=float\)",
        ),
        (csr_array(X), r"must be an array, and are a csr_array: .*x\.toarray\(\)"),
    ],
)
def test_inputs(x, match):
    refused("the inputs of process 'f' " + match, lambda: process()(x))
    match = match.replace("[N, D", "[M, D")
    refused("the inducing inputs z of process 'f' " + match, lambda: process(z=x))


def test_width_of_the_inputs():
    match = "have 2 columns and the inducing inputs 1.*active_columns"
    refused("the inputs of process 'f' " + match, lambda: process()(np.ones((4, 2))))
    match = "have 1 columns and the inducing inputs 3"
    refused(match, lambda: process(z=np.eye(3))(X))


# --------------------------------------------------------------------------- data


@pytest.mark.parametrize(
    "y, match",
    [
        (
            COUNTS[:, None],
            r"shape \(6,\) and have \(6, 1\)\..*\[N, N\]: write y\[:, 0\]",
        ),
        (COUNTS[:5], r"shape \(6,\) and have \(5,\)\. Give one for each row of x"),
        (np.ones(0), r"shape \(6,\) and have \(0,\)"),
        (np.ones((6, 2)), r"shape \(6,\) and have \(6, 2\)\.(\n|$)"),
        (3.0, r"shape \(6,\) and have \(\)\.(\n|$)"),
        (np.where(COUNTS > 3, np.nan, COUNTS), r"be finite.*index \(3,\)"),
        (COUNTS - 1, "support of the likelihood, the integers 0, 1, 2.*them is -1"),
        (COUNTS + 0.5, "the integers 0, 1, 2.*among them is 0.5"),
        (np.array(list("abcdef")), "real numbers and are of dtype <U1"),
        (xr.Dataset({"y": ("row", COUNTS)}), "be an array, and are a Dataset"),
    ],
)
def test_counts(y, match):
    refused("the data of site 'y' must .*" + match, observed, y)


@pytest.mark.parametrize(
    "y, likelihood, num_outputs, match",
    [
        (
            np.array([0, 1, 2, 0, 1, 0]),
            gp.likelihoods.Bernoulli(),
            None,
            r"\{0, 1\}; among them is 2",
        ),
        (
            np.array([-1, 1, 1, -1, 1, 1]),
            gp.likelihoods.Bernoulli("probit"),
            None,
            r"\{0, 1\}; among them is -1",
        ),
        (
            np.array([1, 2, 3, 1, 2, 1]),
            lambda f: dist.Categorical(logits=f),
            3,
            "the integers 0 to 2; among them is 3",
        ),
        (
            COUNTS,
            lambda f: dist.Binomial(3, logits=f),
            None,
            "the integers 0 to 3; among them is 4",
        ),
        (
            COUNTS - 3.0,
            lambda f: dist.Gamma(2.0, jnp.exp(-f)),
            None,
            "the positive numbers; among them is -3",
        ),
    ],
)
def test_labels_outside_the_likelihood(y, likelihood, num_outputs, match):
    refused(
        "data of site 'y' must lie in .*" + match,
        observed,
        y,
        likelihood,
        num_outputs=num_outputs,
    )


def test_right_data_are_taken():
    model = handlers.seed(observed, random.key(0))
    for y in (None, COUNTS, COUNTS.astype(float), jnp.asarray(COUNTS), list(COUNTS)):
        site = handlers.trace(model).get_trace(y)["y"]
        assert site["fn"].log_prob(site["value"]).shape == (6,)


@pytest.mark.parametrize("size", [4, 12])
def test_plate_of_another_size(size):
    refused(
        f"site 'y' has 6 data and is in plate 'data' of {size}.*as long as x",
        observed,
        COUNTS,
        size=size,
    )


def test_subsample_without_its_rows():
    def model():
        latent = process()(X)
        with numpyro.plate("data", 6, subsample_size=2):
            gp.observe("y", gp.likelihoods.Poisson(), latent, obs=COUNTS)

    refused(r"plate 'data' of 2.*with plate\(...\) as rows, f\(x\[rows\]\)", model)


# -------------------------------------------------------------------- likelihoods


@pytest.mark.parametrize(
    "likelihood, num_outputs, match",
    [
        (lambda f: dist.Normal(jnp.zeros(3), 1.0), None, r"\(6,\), and has \(3,\)"),
        (gp.likelihoods.Poisson(), 2, r"\(6, 2\) must .* \(6,\), and has \(6, 2\)"),
        (
            gp.likelihoods.HeteroscedasticGaussian(),
            None,
            r"batch shape \(6,\), and has",
        ),
        (lambda f: dist.Normal(f, 1.0).to_event(1), None, r"\(6,\), and has \(\)"),
    ],
)
def test_batch_shape_of_the_likelihood(likelihood, num_outputs, match):
    refused(
        "the likelihood of a latent of shape .*" + match + r".*taken as f\[..., q\]",
        observed,
        COUNTS,
        likelihood,
        num_outputs=num_outputs,
    )


def _in_words(f):
    return dist.Normal("six" + f, 1.0)


@pytest.mark.parametrize(
    "likelihood, num_outputs, match",
    [
        (
            lambda f: dist.Normal(f, jnp.ones(4)),
            None,
            r"of shape \(6,\) fails: Incomp",
        ),
        (lambda f: dist.Normal(f[:, 0], jnp.ones(4)), 2, r"of shape \(6, 2\) fails: "),
        (_in_words, None, "fails: .*str"),
    ],
)
def test_what_a_likelihood_holds_is_a_number_for_each_datum(
    likelihood, num_outputs, match
):
    refused(
        match + r".*or one for each datum, \(6,\)\.$",
        observed,
        COUNTS,
        likelihood,
        num_outputs=num_outputs,
    )


def test_likelihood_that_is_none():
    match = "maps f to a NumPyro distribution; this one returned a"
    refused(match, observed, COUNTS, jnp.exp)
    refused(
        r"is the class Poisson\. Make an object of it first: Poisson\(\.\.\.\)",
        observed,
        COUNTS,
        gp.likelihoods.Poisson,
    )
    refused(
        "is the class Poisson of distributions. Write a function of f that makes one",
        observed,
        COUNTS,
        dist.Poisson,
    )


def test_observe_of_an_array():
    def model():
        gp.observe("y", gp.likelihoods.Poisson(), jnp.zeros(6), obs=COUNTS)

    refused("site 'y' observes a latent, .* use numpyro.sample", model)


def test_unknown_options():
    refused("link must be 'logit' or 'probit'", gp.likelihoods.Bernoulli, "cloglog")
    refused("method must be ClosedForm", log_prob_with, "mc")
    closed = gp.expectations.ClosedForm()
    refused("no closed-form expectation; leave method=None", log_prob_with, closed)
    for size in (0, 2.0):
        refused(
            f"chunk_size of site 'y' must be a positive integer, and is {size}",
            observed,
            COUNTS,
            chunk_size=size,
        )


def log_prob_with(method):
    likelihood = lambda f: dist.Poisson(jnp.exp(f))  # noqa: E731
    gp.Expected(likelihood, process()(X), method=method).log_prob(COUNTS)


# ---------------------------------------------------------------------- processes


def test_two_processes_of_one_name():
    def model():
        process()
        process()

    refused(r"two sites named 'f'.*called several times: f\(x1\) - f\(x2\)", model)

    def scoped():
        with handlers.scope(prefix="a"):
            process()
            process()

    refused("two sites named 'a/f'", scoped)


NAMED = {
    "sample": lambda: numpyro.sample("day", dist.Normal()),
    "param": lambda: numpyro.param("day", 1.0),
    "deterministic": lambda: numpyro.deterministic("day", jnp.ones(())),
}


@pytest.mark.parametrize("kind", NAMED)
def test_a_site_of_the_name_of_a_plate(kind):
    """NumPyro forgets the site: its prior was drawn at every step, and not scored."""

    def model(x, y=None):
        day = NAMED[kind]()
        f = process()
        with numpyro.plate("day", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x) + day, obs=y)

    key, message = random.key(0), rf"'day', first a {kind} site and then a plate site"
    with pytest.raises(ValueError, match=message):
        gp.fit(key, model, None, X, COUNTS, num_steps=2, progress=False)
    with pytest.raises(ValueError, match=message):
        gp.sample(key, model, X, COUNTS, num_warmup=2, num_samples=2, progress=False)
    with pytest.raises(ValueError, match=message):
        gp.predict(model, {"f": np.zeros((2, len(Z)))}, X, key=key)


def test_a_process_of_the_name_of_a_plate():
    def model(x, y=None):
        f = process()
        with numpyro.plate("f", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)

    with pytest.raises(ValueError, match="'f', first a sample"):
        gp.fit(random.key(0), model, None, X, COUNTS, num_steps=2, progress=False)


@pytest.mark.parametrize("count", [0, -2, 1.5])
def test_number_of_outputs(count):
    refused(
        f"num_outputs of process 'f' must be a positive integer.* is {count}",
        process,
        num_outputs=count,
    )


def test_z_that_changes_with_the_inputs():
    def model(x, y=None):
        latent = gp.sparse_gp("f", KERNEL, x)(x)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), latent, obs=y)

    fit = gp.fit(random.key(0), model, X, COUNTS, num_steps=2, progress=False)
    # Of the parameters alone nothing is known but their shapes.
    match = r"must have shape \(2,\) and have \(6,\).*z must have as many rows"
    with pytest.raises(ValueError, match=match):
        gp.predict(model, (fit.guide, fit.params), X[:2])


def test_the_model_and_the_posterior_the_other_way_round():
    with pytest.raises(ValueError, match="of type ndarray: the model comes before it"):
        gp.predict({"v": np.zeros((2, 3))}, X)


@pytest.mark.parametrize(
    "attrs", [None, Kept(["f"], {}, {}, {}, {}, {}, "").as_attrs()]
)
def test_a_posterior_without_the_rest_of_its_object(attrs):
    draws = gp.diagnostics.to_arviz({"f": np.zeros((1, 2, 3))}, attrs=attrs)
    with pytest.raises(ValueError, match="whole object, draws and not draws"):
        gp.predict(lambda x: None, draws.posterior, X)


def test_a_report_on_draws_takes_no_data():
    draws = {"v": np.zeros((2, 30))}
    with pytest.raises(ValueError, match="After an object of type dict it was given 2"):
        gp.diagnostics.report(draws, X, COUNTS)


@pytest.mark.parametrize("call", [gp.fit, gp.sample])
def test_an_improper_prior(call):
    def model(x, y=None):
        with numpyro.plate("columns", 1):
            positive = dist.ImproperUniform(dist.constraints.positive, (), ())
            lengthscale = numpyro.sample("lengthscale", positive)
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, lengthscale), Z)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)

    with pytest.raises(ValueError, match="'lengthscale' has an improper prior"):
        call(random.key(0), model, X, COUNTS)


def test_process_inside_a_plate():
    def model():
        with numpyro.plate("groups", 3):
            process()

    refused(
        r"'f' must have shape \(3,\) and have \(3, 3\).*inside a plate.*num_outputs",
        model,
    )
    # Its values given, their shape is right, and the density counts three times.
    refused(
        r"'f' is made inside the plate\(s\) \['groups'\].*call sparse_gp before",
        handlers.substitute(model, {"f": jnp.zeros(3)}),
    )


@pytest.mark.parametrize("name", ["f", "y"])
def test_a_process_or_data_in_the_body_of_a_scan(name):
    def model(x, y=None):
        f = None if name == "f" else process()

        def step(carry, _):
            here = process() if f is None else f
            with numpyro.plate("data", len(x)):
                gp.observe("y", gp.likelihoods.Poisson(), here(x), obs=y)
            return carry, None

        scan(step, 0.0, None, length=2)

    message = f"'{name}' is made in the body of .*scan.*before the scan.*after it"
    refused(message, model, X, COUNTS)
    with pytest.raises(ValueError, match=message):
        gp.fit(random.key(0), model, None, X, COUNTS, num_steps=1, progress=False)


def test_kernels_and_means():
    refused("expected a kernel", lambda: gp.sparse_gp("f", "rbf", Z))
    wide = gp.kernels.RBF(1.0, jnp.ones(3))
    match = "one number for lengthscale, or 1.*x, or z of a process.*columns of the in"
    refused(match, lambda: gp.sparse_gp("f", wide, Z))
    refused(
        r"mean function of process 'f' returned shape \(6, 3\); expected \(6,\)",
        lambda: process(mean=lambda x: jnp.ones((6, 3)))(X),
    )


def test_more_inducing_inputs_than_distinct_rows():
    rows = np.repeat(X[:2], 5, axis=0)
    with pytest.raises(
        ValueError, match=r"distinct rows of x, 2 \(of 10, in float..\), got 3"
    ):
        gp.inducing.kmeans(rows, 3)


# -------------------------------------------------------------------- the algebra


def test_latents_of_different_shapes():
    def add():
        return process()(X) + process("g", num_outputs=2)(X)

    refused(r"cannot add latents of shapes \(6,\) and \(6, 2\).*gp.stack", add)

    def stack():
        return gp.stack([process()(X), process("g")(X[:3])])

    refused(r"same number of data, and got \[\(6,\), \(3,\)\]", stack)
    refused("one or more latents", lambda: gp.stack([]))
    match = r"array of shape \(5,\) does not go with a latent of shape \(6,\)"
    refused(match, lambda: process()(X) + np.ones(5))
    refused(r"array of shape \(6, 2\)", lambda: process()(X) * np.ones((6, 2)))
    match = r"W has shape \(2, 3\) and the latent \(6, 2\)"
    refused(match, lambda: np.ones((2, 3)) @ process(num_outputs=2)(X))


def test_product_of_latents():
    refused(
        "the product of two latents is not affine; stack them and multiply inside",
        lambda: process()(X) * process("g")(X),
    )


def test_truth_values():
    def deviation(group):
        return process()(X) + (group == 1) * process("g")(X)

    group = [0, 1, 1, 0, 1, 0]
    match = r"the truth value False, which .* a list .*jnp\.asarray\(group\) == 1"
    refused(match, lambda: deviation(group))
    refused("the truth value True", lambda: process()(X) + (group == group))
    with handlers.seed(rng_seed=0):
        terms = deviation(jnp.asarray(group)).terms
    assert len(terms[0]) == 2


def test_indices():
    refused(r"is indexed as latent\[..., q\]", lambda: process()(X)[..., 0])
    refused(r"is indexed as latent\[..., q\]", lambda: process(num_outputs=2)(X)[0])
    refused(r"call the process with those inputs", lambda: process()(X)[:3])


# ------------------------------------------------------------------------- guides


def two_processes(x, y):
    latent = process("f")(x) + process("g")(x)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Poisson(), latent, obs=y)


def fit_with(guide):
    gp.fit(random.key(0), two_processes, guide, X, COUNTS, num_steps=1, progress=False)


def test_guide_that_misses_a_process():
    def guide(x, y):
        numpyro.sample("f", dist.Normal(jnp.zeros(3), 1.0).to_event(1))

    match = r"no site for the process 'g'.*AutoGaussian.*event shape \(3,\)"
    with pytest.raises(ValueError, match=match):
        fit_with(guide)


def test_guide_of_another_shape():
    def guide(x, y):
        for name in ("f", "g"):
            numpyro.sample(name, dist.Normal(jnp.zeros(4), 1.0).to_event(1))

    with pytest.raises(ValueError, match=r"'f' must have shape \(3,\) and have \(4,\)"):
        fit_with(guide)


@pytest.mark.thorough
@pytest.mark.parametrize("other", ["a site", "a number of the data"])
def test_support_that_moves(other):
    def model(x, y):
        most = jnp.max(x)
        if other == "a site":
            most = numpyro.sample("most", dist.Gamma(30.0, 10.0))
        lengthscale = numpyro.sample("lengthscale", dist.Uniform(0.0, most))
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, lengthscale), Z)
        gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)

    def run():
        return gp.fit(random.key(0), model, X, COUNTS, num_steps=1, progress=False)

    if other == "a site":
        with pytest.raises(ValueError, match=r"'lengthscale' depends on another site"):
            run()
    else:
        assert np.isfinite(run().losses).all()


# --------------------------------------------------------------------- deep models


def test_propagate_without_a_seed():
    def model():
        return gp.propagate("h", process()(X))

    held = handlers.substitute(model, data={"f": jnp.ones(3)})
    with pytest.raises(ValueError, match=r"layer 'h' draws .*seed\(model, key\)"):
        held()


def test_propagate_of_a_mixture():
    components = dist.Normal(jnp.zeros((2, 3)), 1.0).to_event(1)
    mixture = dist.MixtureSameFamily(dist.Categorical(logits=jnp.zeros(2)), components)

    def model():
        return gp.propagate("h", process()(X))

    guide = handlers.trace(handlers.seed(lambda: numpyro.sample("f", mixture), 0))
    held = replay_distributions(model, guide.get_trace())
    refused("layer 'h' cannot propagate a mixture", held)


def with_intercept(x, y=None):
    latent = process()(x) + numpyro.sample("intercept", dist.Normal())
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Poisson(), latent, obs=y)


@pytest.mark.thorough
def test_a_guide_that_draws_other_sites_given_v():
    def guide(x, y=None):
        v = numpyro.sample("f", dist.Normal(jnp.zeros(3), 0.5).to_event(1))
        numpyro.sample("intercept", dist.Normal(-jnp.sum(v), 0.3))

    message = r"depend on its draw of \['f'\], which is integrated out.*Draw the others"
    with pytest.raises(ValueError, match=message):
        gp.fit(random.key(0), with_intercept, guide, X, COUNTS, progress=False)
    with pytest.raises(ValueError, match=message):
        gp.predict(with_intercept, (guide, {}), X, key=random.key(0))
    given = (guide, {}), X
    paths = gp.draw_functions(random.key(0), with_intercept, *given, num_draws=5)
    assert paths["y"].shape == (5, 6)


def test_a_guide_that_draws_one_process_given_another():
    def model(x, y=None):
        latent = process("f")(x) + process("g")(x)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), latent, obs=y)

    def guide(x, y=None):
        v = numpyro.sample("f", dist.Normal(jnp.zeros(3), 0.5).to_event(1))
        numpyro.sample("g", dist.Normal(-v, 0.3).to_event(1))

    def jointly(x, y=None):
        joint = dist.MultivariateNormal(jnp.zeros(6), jnp.eye(6))
        v = numpyro.sample("v", joint, infer={"is_auxiliary": True})
        shapes = {"f": (3,), "g": (3,)}
        for name, block in gp.variational.split("v", joint, v, shapes).items():
            numpyro.sample(name, block)

    options = {"num_steps": 2, "progress": False}
    with pytest.raises(ValueError, match=r"depend on its draw of \['f'\].*split"):
        gp.fit(random.key(0), model, guide, X, COUNTS, **options)
    fitted = gp.fit(random.key(0), model, jointly, X, COUNTS, **options)
    assert np.isfinite(fitted.losses).all()


@pytest.mark.thorough
def test_a_guide_that_draws_v_given_other_sites():
    def guide(x, y=None):
        intercept = numpyro.sample("intercept", dist.Normal(0.0, 0.3))
        v = -intercept * jnp.ones(3)
        numpyro.sample("f", dist.Normal(v, 0.5).to_event(1))

    options = {"num_steps": 2, "progress": False}
    fitted = gp.fit(random.key(0), with_intercept, guide, X, COUNTS, **options)
    prediction = fitted.predict(X, key=random.key(0), num_draws=5)["y"]
    assert np.isfinite(prediction.latent_mean).all()


def apart(x):
    return process("f")(x), process("g")(x)


def outputs(x):
    both = process("f", num_outputs=2)(x)
    return both[..., 0], both[..., 1]


@pytest.mark.parametrize(
    ("latents", "block"),
    [
        pytest.param(apart, ["f", "g"], marks=pytest.mark.thorough),
        (outputs, ["f"]),
    ],
)
def test_propagate_of_a_part_of_a_coupled_q(latents, block):
    def model(x, y=None, together=False):
        f, g = latents(x)
        h = gp.propagate("h", gp.stack([f, g]) if together else f)
        outer = process("outer", np.tile(Z, 1 + together))(h) + (0.0 if together else g)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), outer, obs=y)

    def fitted(together):
        guide = gp.AutoCoupled(model, [block])
        given = X, np.arange(len(X)), together
        return gp.fit(random.key(0), model, guide, *given, num_steps=1, progress=False)

    with pytest.raises(ValueError, match=r"layer 'h' .* part of the q\(v\) 'auto_f"):
        fitted(together=False)
    assert np.isfinite(fitted(together=True).losses).all()
