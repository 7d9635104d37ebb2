"""Exact Hamiltonian trajectories of one sample of a probit factor model (appendix B, corrected).

The binary s_k is the sign of a coordinate d_k, standard normal in size, which moves as a harmonic
oscillator: whatever happens at its wall, d_k = 0 comes back every pi. Its phase is uniform and its energy
at the wall exponential, so that d itself is never formed: a timetable and an energy for each k do.

The other coordinates are kept as displacement from the centre of their oscillation and velocity, both at
the present time, and are rotated from event to event; a reflection is a change of the velocity. The next
wall is found without trigonometric functions, by comparing pseudo-angles that grow with the angle.

Both functions return 1 and leave the new state behind, or return 0 (too many events, or a number that is
not finite) and leave the old factors; the map is its own inverse up to the sign of the velocities, so that
turning back such trajectories is exact.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import math

from factorflow.kernels.compile import options
from factorflow.kernels.scalar.normal import at_least_zero

NEVER = 8.0
WALLS, SWITCHES, CROSSINGS, ENERGY_ERROR = 0, 1, 2, 3
"""Positions in ``counts``: reflections of y and v, visits to d walls, crossings, sum of |H - H(0)|."""


@options(fastmath={"contract", "reassoc", "nsz"})
def _dot(a, b, size):
    total = 0.0
    for n in range(size):
        total += a[n] * b[n]
    return total


def _energy(displacement, velocity, size):
    return 0.5 * (_dot(displacement, displacement, size) + _dot(velocity, velocity, size))


def _next_switch(times):
    """Return which d_k comes to its wall next."""
    first = 0
    for k in range(times.size):
        if times[k] < times[first]:
            first = k
    return first


def binary_trajectory(slope, odds, travel, limit, switch, energy, factors, displacement, velocity, centre,
                      spare, counts):  # fmt: skip
    """Move (d, y) of the model with binary factors for a time.

    Parameters
    ----------
    slope : (K, M) array
        x_n z_nk for the M observed features.
    odds : (K,) array
        a / (1 - a).
    limit : int
        Events allowed.
    switch : (K,) array
        Times at which d_k first comes to its wall, uniform on (0, pi).
    energy : (K,) array
        Energies of d_k, standard exponential.
    factors : (K,) array
        s, changed in place.
    displacement, velocity, centre : (M,) arrays
        y - centre, its velocity (standard normal), and x_n (o_n + z_n . s).
    spare : (K + M,) array
        Scratch.
    counts : (4,) array
        Diagnostics, added to.
    """
    n_factors, n_observed = slope.shape
    for k in range(n_factors):
        spare[k] = factors[k]
    began = _energy(displacement, velocity, n_observed)
    gained, now, events, walls = 0.0, 0.0, 0, 0
    while events <= limit:
        k = _next_switch(switch)
        end = switch[k] >= travel
        until = travel if end else switch[k]
        bounces = _bounce(displacement, velocity, centre, n_observed, until - now, spare[n_factors:], limit)
        walls += bounces
        events += bounces + 1
        now = until
        if end:
            break
        sign = 1.0 - 2.0 * factors[k]
        rise = 0.5 * _dot(slope[k], slope[k], n_observed) - sign * _dot(slope[k], displacement, n_observed)
        cost = rise - sign * math.log(odds[k])
        counts[SWITCHES] += 1.0
        if energy[k] > cost:
            energy[k] -= cost
            gained += rise
            factors[k] += sign
            for n in range(n_observed):
                displacement[n] -= sign * slope[k, n]
                centre[n] += sign * slope[k, n]
            counts[CROSSINGS] += 1.0
        switch[k] += math.pi
    error = abs(_energy(displacement, velocity, n_observed) - began - gained)
    counts[WALLS] += walls
    if events > limit or not math.isfinite(error):
        for k in range(n_factors):
            factors[k] = spare[k]
        return 0
    counts[ENERGY_ERROR] += error
    return 1


def _bounce(displacement, velocity, centre, size, angle, marked, limit):
    """Turn every coordinate by an angle of at most pi, reflecting it where centre + displacement = 0."""
    cos, sin = math.cos(angle), math.sin(angle)
    bounces = 0
    for n in range(size):
        a, b, m = displacement[n], velocity[n], centre[n]
        height = a * a + b * b - m * m
        root = math.sqrt(at_least_zero(height))
        c, s = -m * a - b * root, a * root - m * b
        ahead = s >= 0.0 and sin * c - cos * s > 0.0
        below = a + m <= 0.0 and b < 0.0
        marked[n] = 1.0 if (ahead and height > 0.0) or below else 0.0
    for n in range(size):
        a, b = displacement[n], velocity[n]
        if marked[n] == 0.0:
            displacement[n] = a * cos + b * sin
            velocity[n] = b * cos - a * sin
        else:
            bounces += _bounce_one(displacement, velocity, centre[n], n, cos, sin, limit)
    return bounces


def _bounce_one(displacement, velocity, m, n, cos, sin, limit):
    a, b = displacement[n], velocity[n]
    bounces = 0
    while bounces <= limit:
        if a + m <= 0.0 and b < 0.0:
            b = -b
            bounces += 1
        height = a * a + b * b - m * m
        if height <= 0.0:
            break
        root = math.sqrt(height)
        square = a * a + b * b
        c, s = (-m * a - b * root) / square, (a * root - m * b) / square
        if s < 0.0 or sin * c - cos * s <= 0.0:
            break
        a, b = -m, root
        cos, sin = cos * c + sin * s, sin * c - cos * s
        bounces += 1
    displacement[n] = a * cos + b * sin
    velocity[n] = b * cos - a * sin
    return bounces


def slab_trajectory(slope, gram, odds, positive, travel, limit, switch, energy, on, displacement, velocity,
                    centre, impulse, angle, counts):  # fmt: skip
    """Move (d, v, y) of the models with spike-and-slab factors for a time.

    y and v follow ellipses around (x_n o_n, 0) that do not depend on s; at y_n = 0 (and v_k = 0 of the
    nonnegative model) the velocity is reflected (equations 45-46). At d_k = 0 the velocities of y and v are
    kept, so that their walls stand where they stood, and the energy pays for the change of both the
    potential and the kinetic term.

    Parameters
    ----------
    slope : (K, M) array
        x_n z_nk for the M observed features.
    gram : (K, K) array
        slope slope'.
    odds, travel, limit, switch, energy
        As for `binary_trajectory`.
    positive : bool
        Whether v_k = 0 is a wall.
    on : (K,) array
        s, changed in place.
    displacement, velocity, centre : (M + K,) arrays
        Of y (from x_n o_n), then of v (from 0).
    impulse, angle : (M + K,) arrays
        Scratch.
    counts : (4,) array
        Diagnostics, added to.
    """
    n_factors, n_observed = slope.shape
    size = n_observed + n_factors
    n_walls = size if positive else n_observed
    began, gained, now, events, wall = 0.0, 0.0, 0.0, 0, -1
    begun, end, cos, sin = False, False, 1.0, 0.0
    for i in range(size):
        impulse[i] = 0.0
    while True:  # functions are called at one place each: every call of one is compiled
        _advance(displacement, velocity, centre, impulse, angle, cos, sin, size)
        if wall >= 0:
            displacement[wall] = -centre[wall]
        end = end or events > limit
        if end or not begun:
            total = _slab_energy(slope, on, displacement, velocity, impulse)
            if end:
                break
            began, begun = total, True
        wall = _argmin_angle(angle, n_walls)
        cos, sin, delay = _wall_angle(displacement, velocity, centre, wall)
        until = now + delay if now + delay < travel else travel
        k = _next_switch(switch)
        while switch[k] < until and events <= limit:
            sign = 1.0 - 2.0 * on[k]
            rise = _switch_energy(slope, gram, on, displacement, velocity, k, sign, switch[k] - now)
            cost = rise - sign * math.log(odds[k])
            counts[SWITCHES] += 1.0
            if energy[k] > cost:
                energy[k] -= cost
                gained += rise
                on[k] += sign
                counts[CROSSINGS] += 1.0
            switch[k] += math.pi
            events += 1
            k = _next_switch(switch)
        if now + delay >= travel:
            for i in range(size):
                impulse[i] = 0.0
            cos, sin = math.cos(travel - now), math.sin(travel - now)
            wall, end = -1, True
        else:
            _reflect(slope, on, displacement, velocity, impulse, wall, cos, sin)
            now += delay
            events += 1
            counts[WALLS] += 1.0
    error = abs(total - began - gained)
    if events > limit or not math.isfinite(error):
        return 0
    counts[ENERGY_ERROR] += error
    return 1


def _slab_energy(slope, on, displacement, velocity, spare):
    """Return half the squares of v and of the residuals of y, of their velocities too."""
    n_factors, n_observed = slope.shape
    total = 0.0
    for part in range(2):
        values = displacement if part == 0 else velocity
        for n in range(n_observed):
            spare[n] = values[n]
        for k in range(n_factors):
            v = values[n_observed + k]
            total += 0.5 * v * v
            for n in range(n_observed):
                spare[n] -= on[k] * v * slope[k, n]
        total += 0.5 * _dot(spare, spare, n_observed)
    return total


def _switch_energy(slope, gram, on, displacement, velocity, k, sign, angle):
    """Return by how much switching s_k changes potential and kinetic energy, y, v and velocities kept."""
    n_factors, n_observed = slope.shape
    cos, sin = math.cos(angle), math.sin(angle)
    a = _dot(slope[k], displacement, n_observed)
    b = _dot(slope[k], velocity, n_observed)
    for j in range(n_factors):
        a -= gram[k, j] * on[j] * displacement[n_observed + j]
        b -= gram[k, j] * on[j] * velocity[n_observed + j]
    v, w = displacement[n_observed + k], velocity[n_observed + k]
    v, w = v * cos + w * sin, w * cos - v * sin
    force, rate = a * cos + b * sin, b * cos - a * sin
    return 0.5 * gram[k, k] * (v * v + w * w) - sign * (v * force + w * rate)


def _advance(displacement, velocity, centre, impulse, angle, cos, sin, size):
    """Turn all coordinates, add the impulses, and set the pseudo-angle (0 ... 4) to each one's wall."""
    for i in range(size):
        a = displacement[i] * cos + velocity[i] * sin
        b = velocity[i] * cos - displacement[i] * sin + impulse[i]
        m = centre[i]
        displacement[i] = a
        velocity[i] = b
        height = a * a + b * b - m * m
        root = math.sqrt(at_least_zero(height))
        c, s = -m * a - b * root, a * root - m * b
        part = s / (abs(c) + abs(s))
        ahead = part if s >= 0.0 else 4.0 + part
        turn = ahead if c >= 0.0 else 2.0 - part
        turn = turn if height > 0.0 else NEVER
        angle[i] = 0.0 if a + m <= 0.0 and b < 0.0 else turn


def _argmin_angle(angle, size):
    first = 0
    for i in range(size):
        if angle[i] < angle[first]:
            first = i
    return first


def _wall_angle(displacement, velocity, centre, wall):
    """Return cosine and sine of the angle to a wall, and the angle itself; infinite if it is never met."""
    a, b, m = displacement[wall], velocity[wall], centre[wall]
    if a + m <= 0.0 and b < 0.0:
        return 1.0, 0.0, 0.0
    height = a * a + b * b - m * m
    if not height > 0.0:
        return 1.0, 0.0, math.inf
    root = math.sqrt(height)
    c, s = -m * a - b * root, a * root - m * b
    radius = math.sqrt(c * c + s * s)
    delay = math.atan2(s, c)
    return c / radius, s / radius, delay if delay >= 0.0 else delay + 2.0 * math.pi


def _reflect(slope, on, displacement, velocity, impulse, wall, cos, sin):
    """Set the changes of all velocities when coordinate ``wall`` is reflected: -2 alpha D^-1 h."""
    n_factors, n_observed = slope.shape
    speed = velocity[wall] * cos - displacement[wall] * sin
    for i in range(n_observed + n_factors):
        impulse[i] = 0.0
    if wall >= n_observed:
        k = wall - n_observed
        impulse[wall] = -2.0 * speed
        for n in range(n_observed):
            impulse[n] = -2.0 * speed * on[k] * slope[k, n]
        return
    norm = 1.0
    for k in range(n_factors):
        norm += on[k] * slope[k, wall] * slope[k, wall]
    alpha = 2.0 * speed / norm
    for k in range(n_factors):
        if on[k] != 0.0:
            change = -alpha * slope[k, wall]
            impulse[n_observed + k] = change
            for n in range(n_observed):
                impulse[n] += change * slope[k, n]
    impulse[wall] -= alpha
