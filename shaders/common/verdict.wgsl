// The status of a row with loss; see src/ops/row_status/mod.rs.
const WRONG: u32 = 0u;
const RIGHT: u32 = 1u;
const NOT_FINITE: u32 = 2u;

// Exponent bits all set. A comparison would be optimised away.
fn not_finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7f800000u) == 0x7f800000u;
}

fn not_finite4(x: vec4<f32>) -> vec4<bool> {
    return (bitcast<vec4<u32>>(x) & vec4<u32>(0x7f800000u)) == vec4<u32>(0x7f800000u);
}

// Which of the four logits from column 4·c on are likelier than the target. Of equal logits the first is the likeliest.
fn likelier(z: vec4<f32>, c: u32, target_logit: f32, target_id: u32) -> vec4<bool> {
    let i = vec4<u32>(c * 4u) + vec4<u32>(0u, 1u, 2u, 3u);
    return (z > vec4<f32>(target_logit)) | ((z == vec4<f32>(target_logit)) & (i < vec4<u32>(target_id)));
}

fn verdict(wrong: bool, lost: bool) -> u32 {
    return select(select(RIGHT, WRONG, wrong), NOT_FINITE, lost);
}
