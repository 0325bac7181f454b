var<workgroup> kept: array<u32, 32>;

@group(0) @binding(0) var<storage, read_write> result: array<u32>;

@compute @workgroup_size(32)
fn main(@builtin(local_invocation_index) lane: u32) {
    kept[lane] = lane;
    subgroupBarrier();
    result[lane] = kept[lane ^ 1u];
}
