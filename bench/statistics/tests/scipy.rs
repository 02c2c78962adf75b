//! The same data by another hand: the expected values were computed once with scipy 1.17.1
//! (`mannwhitneyu`, `binomtest(..).proportion_ci`, `bootstrap`, numpy's `quantile`) and stand here
//! as they were printed.

use statistics::binomial::{clopper_pearson, wilson};
use statistics::rank::{holm, launches_to_show, mann_whitney};
use statistics::{estimate, quantile};

const A: [f64; 8] = [51.2, 49.8, 50.5, 52.1, 48.9, 50.1, 51.7, 49.5];
const B: [f64; 8] = [53.0, 52.4, 50.9, 54.2, 51.9, 53.3, 52.8, 51.1];
/// With ties.
const C: [f64; 12] = [10.0, 12.0, 12.0, 13.0, 15.0, 15.0, 15.0, 18.0, 20.0, 21.0, 22.0, 25.0];
const D: [f64; 12] = [12.0, 14.0, 15.0, 15.0, 19.0, 22.0, 23.0, 23.0, 26.0, 30.0, 31.0, 40.0];
/// Of lognormal distributions.
const E: [f64; 30] = [
    20.095, 22.635, 18.0, 14.066, 16.746, 13.509, 20.575, 34.332, 16.496, 15.671, 24.433, 23.168, 20.951,
    13.843, 19.852, 26.526, 11.732, 16.726, 9.389, 11.991, 9.615, 18.283, 12.098, 22.388, 21.385, 18.638,
    7.34, 16.192, 19.7, 21.017,
];
const F: [f64; 25] = [
    13.984, 21.304, 17.437, 18.662, 39.423, 18.671, 25.457, 36.736, 20.421, 24.663, 26.955, 26.457, 15.799,
    26.588, 44.413, 13.89, 36.37, 27.051, 19.954, 57.407, 34.984, 15.963, 26.571, 32.482, 23.915,
];

fn close(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 1e-9 * expected.abs().max(1e-3), "{found} is not {expected}");
}

#[test]
fn mann_whitney_is_scipys() {
    // Exact; asymptotic with ties; asymptotic without.
    let expected: [(&[f64], &[f64], [f64; 3]); 3] = [
        (&A, &B, [7.0, 0.006993006993006993, -0.78125]),
        (&C, &D, [38.5, 0.05535021818571848, -0.4652777777777778]),
        (&E, &F, [168.0, 0.00048214093937491367, -0.552]),
    ];
    for (first, second, [u, p, effect]) in expected {
        let found = mann_whitney(first, second).expect("two sets");
        close(found.u, u);
        close(found.p, p);
        close(found.effect, effect);
    }
}

#[test]
fn bounds_of_shares_are_scipys() {
    let expected = [
        (0, 50, [0.0, 0.07112173646420458], [0.0, 0.07134759913335872]),
        (
            3,
            1_000,
            [0.0006190999316499173, 0.008742023238657654],
            [0.0010207838811386186, 0.008783014053503173],
        ),
        (17, 40, [0.270429031268837, 0.5910994195730367], [0.28509392559950375, 0.5780493145800892]),
        (50, 50, [0.9288782635357954, 1.0], [0.9286524008666412, 1.0]),
        (
            1,
            100_000,
            [2.5317842743932826e-07, 5.571516034432556e-05],
            [1.765247730378316e-06, 5.664709659040965e-05],
        ),
    ];
    for (seen, trials, exact, score) in expected {
        let (clopper, wilson) =
            (clopper_pearson(seen, trials).expect("trials"), wilson(seen, trials).expect("trials"));
        close(clopper.low, exact[0]);
        close(clopper.high, exact[1]);
        close(wilson.low, score[0]);
        close(wilson.high, score[1]);
    }
}

#[test]
fn quantiles_and_corrections_are_theirs() {
    let expected = [(0.1, 11.5203), (0.5, 18.1415), (0.95, 25.584149999999994), (0.99, 32.06826000000001)];
    expected.iter().for_each(|&(share, value)| close(quantile(&E, share).expect("values"), value));
    let corrected = holm(&[0.01, 0.04, 0.03, 0.005, 0.2]);
    [0.04, 0.09, 0.09, 0.025, 0.2].iter().zip(corrected).for_each(|(&value, found)| close(found, value));
    // Noether's formula with scipy's normal quantiles: 6.46, 20.93 and 35.50, rounded up.
    let shown = [(0.9, 1, 7), (0.5, 1, 21), (0.5, 10, 36)];
    shown
        .iter()
        .for_each(|&(effect, comparisons, n)| assert_eq!(launches_to_show(effect, comparisons), Some(n)));
}

#[test]
fn the_bootstrap_of_a_median_is_scipys_but_for_the_drawing() {
    // 200,000 resamples there, 2,000 here: the bounds are order statistics and may be a neighbour.
    let found = estimate(&E).expect("values");
    assert!((found.low - 15.9315).abs() < 0.6 && (found.high - 20.335).abs() < 0.4, "{found:?}");
    let found = estimate(&A).expect("values");
    assert!((found.low - 49.5).abs() < 0.2 && (found.high - 51.7).abs() < 0.3, "{found:?}");
}
