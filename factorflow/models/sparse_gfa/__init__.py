"""Sparse group factor analysis: a few factors behind several views, each loading on few features.

For sample n, feature d of view m, factor k (more in ``docs/models/sparse_gfa.md``)::

    x_nd = sum_c a_nc b_dc + sum_k w_dk z_nk                              predictor; a = (1, covariates)
    y ~ p(y | x, phi_d)                                                   `factorflow.likelihoods`
    y ~ N(x, 1 / (tau_d rho_n))                                           Gaussian views
    tau ~ Ga(a, r) or Ga(a, r times the variance of the feature), a and r learned;  rho ~ Ga(1e-3, 1e-3)
    w = s w^,  s ~ Bern(theta_k),  w^ ~ N(0, 1 / alpha_k),  theta ~ Be(1, 1)   or another prior of `loadings`
    alpha ~ Ga(1/2, size^2 / 2);  Ga(10, 10) where all views are binary
    b ~ N(m, 1 / lambda),  m ~ N(0, 1e6) of intercepts, else 0,  lambda ~ Ga(1e-3, 1e-3) for each term
    z ~ N(0, 1), or z = t z^,  t ~ Bern(psi_k),  z^ ~ N(0, 1 / beta_k) for each group

Symbols
-------
q(w, s) is `Weights.mean` (mu), `variance` (sigma^2), `inclusion` (gamma); q(b), the intercept first,
`coefficients`, `coefficients_spread`; q(tau) `noise_shape`, `noise_rate`; q(alpha), q(theta), q(m), q(lambda)
stand in `View`, q(beta), q(psi) in `Globals`, q(z), q(rho) in `Local` (`state`).

One iteration
-------------
1. On every block: pseudo-data of its entries (`pseudo_data`), z, then rho (`e_step`); what they add up
   (`statistics`). An entry that is not Gaussian is one of precision u at m + g / u, with slope g and
   curvature u of its expected log-likelihood at q(x) = N(m, v).
2. On every run of features: w by its prior (`loadings`), b, tau or phi (`m_step`).
3. At the root (`global_step`): m, lambda, alpha, theta, beta, psi and the bound (`elbo`), a change of basis
   every third pass (`change_of_basis`; with tangents z -> z + c, b -> b - W c, too), hyperparameters at
   their optimum (`hyperparameters`), the worth of each factor (`n_factors`), how far the next pass goes
   (`squarem`).

`model` lines up the stages: `start` begins, `intervals` and `results` end them; `prediction` and `projection`
work with what was found; `sampler` draws from there on. Scores may be functions of time and place, or have a
level for each subject (`smooth`). `config` has the options, `resolve` joins them with the shape of the data
(`settings`).

Corrections to the source
-------------------------
The note this model goes back to has the log-odds of s without the factor 1/2 at its squared term, puts the
log-odds where q(s) needs the probability, takes the plug-in likelihood of binary views for a bound (it lies
above), leaves out their intercept and most of the bound. Tests: one loading is exact
(``tests/models/sparse_gfa/test_loadings.py``), the bound equals Monte Carlo (``test_monte_carlo.py``) and
never falls (``test_bound.py``).

References
----------
Argelaguet et al. (2018), Molecular Systems Biology 14, e8124. Jaakkola and Jordan (2000), Statistics and
Computing 10, 25-37 (``bound=True``). Opper and Archambeau (2009), Neural Computation 21, 786-792 (expected
log-likelihoods and their derivatives).
"""

from factorflow.models.sparse_gfa.config import SparseGFA
from factorflow.models.sparse_gfa.model import SparseGFAModel
from factorflow.models.sparse_gfa.sampler.sampled import SampledGFAModel

__all__ = ["SampledGFAModel", "SparseGFA", "SparseGFAModel"]
