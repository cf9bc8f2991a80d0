"""What may be said of runs that differ in one choice, each pair of one seed.

The differences d_1 ... d_n of n pairs have mean m and standard deviation s. Were there no effect, t = m sqrt(n) / s
would be Student's t with n-1 degrees of freedom: that gives p, and the interval m ± t_q s / sqrt(n). A table makes many
comparisons, so its p are corrected by Holm's method: over tables without any effect a sign is said in at most LEVEL.
"""
import functools
import math
import random
import statistics

LEVEL = 0.05  # false signs, of tables without an effect; and what an interval leaves out
FEWEST = 5  # seeds of a sign
POWER = 0.8  # how often the seeds that we ask for would see the effect


def two_sided_p(t, df):
    """How often Student's t with df degrees of freedom is further from 0 than t. (Abramowitz and Stegun, 26.7.3,
    26.7.4)"""
    theta = math.atan(abs(t) / math.sqrt(df))
    term = total = math.cos(theta) if df % 2 else 1.0
    for k in range(2 if df % 2 else 1, df - 1, 2):
        term *= math.cos(theta) ** 2 * k / (k + 1)
        total += term
    inside = (2 / math.pi * (theta + math.sin(theta) * (total if df > 1 else 0)) if df % 2 else math.sin(theta) * total)
    return max(0.0, 1 - inside)


@functools.cache
def t_quantile(outside, df):
    """The t that is exceeded, on both sides together, in `outside` of all cases."""
    low, high = 0.0, 1.0
    while two_sided_p(high, df) > outside:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided_p(middle, df) > outside else (low, middle)
    return high


def half_width(differences, outside=LEVEL):
    """The interval's half width, of at least two differences."""
    n = len(differences)
    return t_quantile(outside, n - 1) * statistics.stdev(differences) / math.sqrt(n)


def p_value(differences):
    spread = statistics.stdev(differences)
    middle = statistics.fmean(differences)
    if spread == 0:
        return 1.0 if middle == 0 else 0.0
    return two_sided_p(middle * math.sqrt(len(differences)) / spread, len(differences) - 1)


def holm(p_values):
    """Corrected for their number: the k-th smallest of n times n-k+1, and none below a smaller one's."""
    corrected, so_far = [0.0] * len(p_values), 0.0
    for k, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        so_far = max(so_far, min(1.0, (len(p_values) - k) * p_values[i]))
        corrected[i] = so_far
    return corrected


def seeds_needed(differences, effect, comparisons):
    """With how many seeds an effect of this size would be seen in POWER of all cases, among so many comparisons."""
    spread = statistics.stdev(differences)
    for n in range(FEWEST, 1000):
        quantiles = t_quantile(LEVEL / comparisons, n - 1) + t_quantile(2 * (1 - POWER), n - 1)
        if quantiles * spread <= effect * math.sqrt(n):
            return n
    return 1000


def verdicts(comparisons):
    """What is said of each comparison of a table: (verdict, corrected p or None). A comparison is (differences, the
    paper's effect), which is ±inf where the paper gives a direction alone. Fewer than FEWEST pairs have no sign."""
    tested = [i for i, (d, _) in enumerate(comparisons) if len(d) >= FEWEST and any(d)]
    corrected = dict(zip(tested, holm([p_value(comparisons[i][0]) for i in tested])))
    said = []
    for i, (d, effect) in enumerate(comparisons):
        middle, figure = statistics.fmean(d), math.isfinite(effect) and effect != 0
        if not any(d):
            verdict = "no change"
        elif i not in corrected:
            verdict = "too few seeds"
        elif corrected[i] <= LEVEL:
            verdict = "agrees" if (middle < 0) == (effect < 0) else "differs"
        elif figure and abs(effect) > math.copysign(middle, middle * effect) + half_width(d, LEVEL / len(tested)):
            verdict = "absent"  # an effect as large as the paper's lies outside the interval, widened for the table
        else:
            verdict = "not resolved" + (f": {seeds_needed(d, abs(effect), len(tested))} seeds" if figure else "")
        said.append((verdict, corrected.get(i)))
    return said


def rank_agreement(ours, theirs, shuffles=10000):
    """Kendall's tau of two lists, and how often shuffled rows agree at least as well."""
    def pairs_of(a):
        return [(a[i] > a[j]) - (a[i] < a[j]) for i in range(len(a)) for j in range(i)]

    def tau(a):
        return sum(x * y for x, y in zip(pairs_of(a), signs)) / len(signs)
    signs, shuffled, dice = pairs_of(theirs), list(ours), random.Random(1)
    found, as_good = tau(ours), 1
    for _ in range(shuffles):
        dice.shuffle(shuffled)
        as_good += tau(shuffled) >= found
    return found, as_good / (shuffles + 1)
