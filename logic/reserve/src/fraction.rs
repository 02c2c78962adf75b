//! Sums of fractions without floats: exactly where it decides, rounded to the safe side where a
//! bound suffices.

use std::cmp::Ordering;

/// One, in fixed point: 62 bits behind the point, so that the product of two numbers up to 2 fits
/// 126 bits.
pub(crate) const ONE: u128 = 1 << 62;

/// `part / whole` in fixed point, rounded up.
pub(crate) fn up(part: u64, whole: u64) -> u128 {
    (u128::from(part) << 62).div_ceil(u128::from(whole.max(1)))
}

/// `part / whole` in fixed point, rounded down.
pub(crate) fn down(part: u64, whole: u64) -> u128 {
    (u128::from(part) << 62) / u128::from(whole.max(1))
}

/// The product of two numbers in fixed point, rounded up. Both are at most 2.
pub(crate) fn product_up(one: u128, other: u128) -> u128 {
    (one * other).div_ceil(ONE)
}

/// Compares the sum of `part / whole` over all `parts` with one, exactly.
pub(crate) fn compare_to_one(parts: impl Iterator<Item = (u64, u64)> + Clone) -> Ordering {
    let mut sum = 0;
    let mut count = 0;
    for (part, whole) in parts.clone() {
        sum += down(part, whole);
        count += 1;
    }
    if sum > ONE {
        Ordering::Greater
    } else if sum + count < ONE {
        // Each fraction lost less than one unit of the last place.
        Ordering::Less
    } else {
        divide_long(parts)
    }
}

/// The same by long division, 64 bits at a time, until the digits differ.
///
/// A sum that is not one differs from it by one part in the product of all denominators at least.
/// So once more digits agree than that product has, the sum is one.
fn divide_long(parts: impl Iterator<Item = (u64, u64)>) -> Ordering {
    let mut wholes = 0_i128;
    let mut remainders: Vec<(u64, u64)> = Vec::new();
    for (part, whole) in parts {
        let whole = whole.max(1);
        wholes += i128::from(part / whole);
        remainders.push((part % whole, whole));
    }
    let bits: u64 = remainders.iter().map(|(_, whole)| u64::from(64 - whole.leading_zeros())).sum();
    let count = i128::try_from(remainders.len()).unwrap_or(i128::MAX);
    // What the remainders have to sum up to.
    let mut missing = 1 - wholes;
    for _ in 0..bits / 64 + 2 {
        if missing < 0 {
            return Ordering::Greater;
        }
        if missing >= count.max(1) {
            return Ordering::Less;
        }
        if missing == 0 {
            let nothing = remainders.iter().all(|(rest, _)| *rest == 0);
            return if nothing { Ordering::Equal } else { Ordering::Greater };
        }
        missing <<= 64;
        for (rest, whole) in &mut remainders {
            let scaled = u128::from(*rest) << 64;
            // The quotient is less than 2^64, the remainder less than `whole`.
            missing -= i128::try_from(scaled / u128::from(*whole)).unwrap_or(i128::MAX);
            *rest = u64::try_from(scaled % u128::from(*whole)).unwrap_or(u64::MAX);
        }
    }
    Ordering::Equal
}

/// The greatest common divisor.
pub(crate) fn common_divisor(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

/// The least common multiple; `None` where it does not fit.
pub(crate) fn common_multiple(one: u64, other: u64) -> Option<u64> {
    (one / common_divisor(one, other).max(1)).checked_mul(other)
}

/// The hyperperiod of some periods; `None` where it does not fit.
pub(crate) fn hyperperiod(mut periods: impl Iterator<Item = u64>) -> Option<u64> {
    periods.try_fold(1, common_multiple)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The sum over a common denominator, for denominators whose product fits.
    fn reference(parts: &[(u64, u64)]) -> Ordering {
        let whole: u128 = parts.iter().map(|(_, whole)| u128::from(*whole)).product();
        let sum: u128 = parts.iter().map(|(part, of)| u128::from(*part) * (whole / u128::from(*of))).sum();
        sum.cmp(&whole)
    }

    #[test]
    fn thirds_make_one_and_a_hair_more_or_less_does_not() {
        let compare = |parts: &[(u64, u64)]| compare_to_one(parts.iter().copied());
        assert_eq!(compare(&[(1, 3), (1, 3), (1, 3)]), Ordering::Equal);
        let hour = 3_600_000_000_000;
        assert_eq!(compare(&[(1, hour), (hour - 2, hour - 1)]), Ordering::Less);
        assert_eq!(compare(&[(1, hour - 1), (hour - 1, hour)]), Ordering::Greater);
        assert_eq!(compare(&[(1, 7), (2, 7), (4, 7)]), Ordering::Equal);
        assert_eq!(compare(&[]), Ordering::Less);
        assert_eq!(compare(&[(5, 5)]), Ordering::Equal);
        assert_eq!(compare(&[(7, 5)]), Ordering::Greater);
    }

    proptest! {
        #[test]
        fn comparing_is_exact(mut parts in prop::collection::vec((1_u64..2000, 1_u64..2000), 1..8), close in any::<bool>()) {
            for (part, whole) in &mut parts { *part = (*part % *whole).max(1); }
            if close {
                // Bring the sum to within one part of the last denominator.
                let (last, rest) = parts.split_last_mut().unwrap();
                let whole: u128 = rest.iter().map(|(_, whole)| u128::from(*whole)).product();
                let sum: u128 = rest.iter().map(|(part, of)| u128::from(*part) * (whole / u128::from(*of))).sum();
                if let Some(missing) = whole.checked_sub(sum) {
                    last.0 = u64::try_from(missing * u128::from(last.1) / whole).unwrap();
                }
            }
            prop_assert_eq!(compare_to_one(parts.iter().copied()), reference(&parts));
        }

        #[test]
        fn long_division_agrees_where_it_is_not_needed(parts in prop::collection::vec((1_u64..2000, 1_u64..2000), 1..8)) {
            prop_assert_eq!(divide_long(parts.iter().copied()), reference(&parts));
        }
    }
}
