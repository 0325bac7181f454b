enable wgpu_cooperative_matrix;

@group(0) @binding(0) var<storage, read_write> data: array<f32>;

@compute @workgroup_size(32)
fn main() {
    var matrix: coop_mat8x8<f32, C>;
    matrix = coopLoad<coop_mat8x8<f32, C>>(&data[0], 8u);
    coopStore(matrix, &data[64], 8u);
    storageBarrier();
}
