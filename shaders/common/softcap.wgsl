#if {CAP}
// c of c·tanh(s/c) on scores: the f32 with the bits CAP.
fn softcap() -> f32 {
    return bitcast<f32>({CAP}u);
}

// c·tanh(s/c). Its argument is bounded, because some drivers make tanh of exponentials that overflow.
fn capped(s: vec4<f32>) -> vec4<f32> {
    return softcap() * tanh(clamp(s / softcap(), vec4<f32>(-10.0), vec4<f32>(10.0)));
}

// The slope of `capped` where its value is `s`.
fn slope_at(s: vec4<f32>) -> vec4<f32> {
    let share = s / softcap();
    return 1.0 - share * share;
}

#end
