//! Which rows of logits predict their target as the likeliest token.

use super::row;

/// `logits` `[N, V]`, `targets` `[N]` -> `[N]`: whether no logit is larger than the target's and no equal one precedes it.
pub fn right(logits: &[f64], targets: &[u32], vocab: usize) -> Vec<bool> {
    let mut right = vec![true; targets.len()];
    for n in 0..targets.len() {
        let (logits, target) = (row(logits, n, vocab), targets[n] as usize);
        for i in 0..vocab {
            if logits[i] > logits[target] || (logits[i] == logits[target] && i < target) {
                right[n] = false;
            }
        }
    }
    right
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_equal_logits_the_first_is_the_likeliest() {
        assert_eq!(right(&[1.0, 3.0, 3.0, 0.0], &[1], 4), [true]);
        assert_eq!(right(&[1.0, 3.0, 3.0, 0.0], &[2], 4), [false]);
        assert_eq!(right(&[1.0, 3.0, 2.0, 5.0], &[0, 1], 2), [false, true]);
    }
}
