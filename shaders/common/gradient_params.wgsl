    // Fields of `Params` that shaders/common/adapter_gradients.wgsl reads. Twin of `GradientParams` in src/ops/lora/coop16_gradients.rs.
    b_scale: f32,       // of dB
    z_stride4: u32,
    u_stride4: u32,
#for n in 0..3
    tiles_{n}: u32,     // stride between columns of matrices in dy: T/16 or more
    cols_{n}: u32,      // N
    ranks4_{n}: u32,    // R / 4
    offset4_{n}: u32,   // first column of z, / 4
    end_{n}: u32,       // workgroups of this dB and of those before it; those of dA are last
#end
    tiles_a: u32,       // as for dy, in x
    cols_a: u32,        // K
    ranks4_a: u32,      // Σ R / 4
    offset4_a: u32,     // first column of u, / 4
    end_a: u32,         // workgroups of all
