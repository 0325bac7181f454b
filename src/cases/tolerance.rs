//! The largest errors that are allowed, and the comparison of what a device wrote with f64.

/// The largest errors of one result.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// For the self-test of a user's device: error of one element, relative to the largest one. Drivers differ in how exact their functions are.
    pub device: f64,
    /// Norm of the difference, relative to the norm of the expected values.
    pub norm: f64,
    /// Error of one element, relative to itself …
    pub relative: f64,
    /// … plus relative to the largest element.
    pub absolute: f64,
    /// Size of the terms of sums that may cancel: the least that `norm` and `absolute` count as the size of an element.
    pub size: f64,
}

/// f32: rounding of sums of a few hundred products.
pub const F32: Tolerance = Tolerance::of(2e-5);
/// Operands that are rounded to f16.
pub const F16: Tolerance = Tolerance::of(1e-2);
/// One operand that is rounded to integers of 16 bits: by at most half of 1/32639 of the largest of 16 values.
pub const BYTES: Tolerance = Tolerance { device: 2e-4, ..Tolerance::new(5e-5, 2e-4, 2e-4) };
/// Rounding of sums of up to 1024 products in f32: about ε·√K = 6e-8·32 at worst.
pub const PRODUCT: Tolerance = Tolerance::new(2e-6, 2e-6, 2e-6);
/// Sums of up to 1024 products of operands that are rounded to f16, by 2^-11 each.
pub const HALF: Tolerance = Tolerance { device: F16.device, ..Tolerance::new(1e-3, 2e-3, 2e-3) };
/// A norm and a few sums.
pub const SUMS: Tolerance = Tolerance::new(2e-6, 4e-6, 4e-6);
/// One rounding of a product or a sum.
pub const SUM: Tolerance = Tolerance::new(1.2e-7, 2.4e-7, 1.2e-7);
/// An exponential, a quotient and two products.
pub const GATES: Tolerance = Tolerance::new(5e-7, 1e-6, 1e-6);
/// Values that are copied.
pub const EXACT: Tolerance = Tolerance::of(0.0);

impl Tolerance {
    /// Error of one element, relative to the largest one, for every device.
    const fn of(device: f64) -> Tolerance {
        Tolerance { device, norm: f64::INFINITY, relative: 0.0, absolute: device, size: 0.0 }
    }

    /// That of results in f32.
    pub const fn new(norm: f64, relative: f64, absolute: f64) -> Tolerance {
        Tolerance { norm, relative, absolute, ..F32 }
    }

    /// For sums whose terms are of about `size`.
    pub const fn around(self, size: f64) -> Tolerance {
        Tolerance { size, ..self }
    }

    /// The part that the self-test asks for.
    pub const fn of_device(self) -> Tolerance {
        Tolerance::of(self.device)
    }

    /// Compares rows of `width` values; returns the errors of norm and elements as shares of what is allowed.
    ///
    /// # Errors
    /// The first element that is wrong, in words.
    pub fn compare(&self, width: usize, found: &[f64], expected: &[f64]) -> Result<[f64; 2], String> {
        assert_eq!(found.len(), expected.len(), "one expected value for each place");
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
        let floor = self.size * (expected.len() as f64).sqrt();
        let scale = norm(&mut expected.iter().copied()).max(floor).max(1e-30);
        let error = norm(&mut found.iter().zip(expected).map(|(f, e)| f - e)) / scale;
        // Devices may write 0 for smaller values.
        let largest = expected.iter().fold(self.size, |most, x| most.max(x.abs())).max(1e-30);
        let share = |error: f64, allowed: f64| if allowed > 0.0 { error / allowed } else { 0.0 };
        let mut worst = 0f64;
        for (i, (f, e)) in found.iter().zip(expected).enumerate() {
            let allowed = self.relative * e.abs() + self.absolute * largest;
            let close = (f - e).abs() <= allowed; // false for NaN
            if !close {
                let [row, column, rows] = [i / width, i % width, found.len() / width];
                return Err(format!(
                    "[{row}, {column}] of [{rows}, {width}] is {f:e}, expected {e:e} within {allowed:.1e} (norm: {error:.1e} apart)"
                ));
            }
            worst = worst.max(share((f - e).abs(), allowed));
        }
        let close = error <= self.norm;
        if !close {
            return Err(format!("relative error {error:.2e}, expected at most {:.0e}", self.norm));
        }
        Ok([share(error, self.norm), worst])
    }
}
