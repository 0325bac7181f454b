// Inverted dropout of the inputs of experts' adapters. The mask depends only on key, choice and column, not on the row of the choice among
// the groups. The importer's params have `mask_key`, `mask_first` (the first choice), `mask_stride` (columns per choice), `mask_threshold`
// (p·2³²) and `mask_scale` (1/(1 − p)). The rule is that of shaders/dropout/plain.wgsl, with choices in place of tokens.
#import common/pcg

fn mask4(choice: u32, col4: u32) -> vec4<f32> {
    let first = pcg(params.mask_key) + (params.mask_first + choice) * params.mask_stride + 4u * col4;
    let draws = vec4<u32>(pcg(first), pcg(first + 1u), pcg(first + 2u), pcg(first + 3u));
    return select(vec4<f32>(params.mask_scale), vec4<f32>(), draws < vec4<u32>(params.mask_threshold));
}
